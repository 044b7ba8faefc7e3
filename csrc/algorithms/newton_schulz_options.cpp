#include "algorithms/newton_schulz_options.h"

#include <algorithm>
#include <cmath>

#include "linalg/backend.h"

namespace torchdion::algorithms {

namespace {

double factor_on_lr(const Batch& batch, const Options& options) {
  if (is_none(options.at("adjust_lr"))) return 1;
  const std::string_view rule = options.text("adjust_lr");
  if (rule == "rms_norm") return 0.2 * std::sqrt(static_cast<double>(std::max(batch.shape.m, batch.shape.n)));
  return rule == "original" ? std::max(1., batch.shape_factor) : batch.shape_factor;
}

}  // namespace

at::ScalarType orthonormalized_dtype(const BatchShape& shape, const Options& options) {
  const bool in_half = options.text("precision") == "medium" && shape.computing != at::kDouble;
  return in_half ? at::kBFloat16 : shape.computing;
}

int64_t room_for_orthonormalized(int64_t numel, const BatchShape& shape, const Options& options) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(orthonormalized_dtype(shape, options)));
  const auto element = static_cast<int64_t>(c10::elementSize(shape.computing));
  return (bytes + element - 1) / element;
}

linalg::NewtonSchulzSteps newton_schulz_steps(int64_t m, int64_t n, const Options& options, at::ScalarType dtype,
                                              c10::Device device) {
  const std::string_view kind = options.text("newton_schulz");
  const int64_t steps = options.integer("ns_steps");
  if (kind == "jordan") return {std::vector<linalg::Quintic>(steps, linalg::kJordan)};
  const linalg::NewtonSchulzSteps one_by_one{linalg::polar_express(steps), linalg::kPolarExpressSlack};
  if (kind == "polar_express" || (kind == "auto" && !linalg::iterates_on_gram(device))) return one_by_one;
  const double slack = dtype == at::kBFloat16 ? linalg::kHalfGramSlack : linalg::kPolarExpressSlack;
  linalg::NewtonSchulzSteps on_gram{linalg::polar_express(steps, slack), linalg::kPolarExpressSlack, true};
  const auto operations = [&](const auto& form) { return linalg::newton_schulz_operations(m, n, form, dtype); };
  return kind == "auto" && operations(one_by_one) <= operations(on_gram) ? one_by_one : on_gram;
}

int64_t newton_schulz_operations(int64_t m, int64_t n, const BatchShape& shape, const Options& options) {
  const at::ScalarType dtype = orthonormalized_dtype(shape, options);
  return linalg::newton_schulz_operations(m, n, newton_schulz_steps(m, n, options, dtype, shape.device), dtype);
}

int64_t newton_schulz_bytes(int64_t m, int64_t n, const BatchShape& shape, const Options& options) {
  const at::ScalarType dtype = orthonormalized_dtype(shape, options);
  return linalg::newton_schulz_bytes(m, n, newton_schulz_steps(m, n, options, dtype, shape.device), dtype);
}

at::Tensor orthonormalize_as_asked(const at::Tensor& X, const Options& options, const at::Tensor& squares) {
  const auto steps = newton_schulz_steps(X.size(1), X.size(2), options, X.scalar_type(), X.device());
  return linalg::newton_schulz(X, steps, precision_asked(options), squares);
}

linalg::FactorRule rates_of(const Batch& batch, const Options& options) {
  return {factor_on_lr(batch, options), options.number("lr"), options.number("weight_decay"), batch.multipliers,
          batch.gradients.left_out};
}

}  // namespace torchdion::algorithms
