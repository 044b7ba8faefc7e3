#include "algorithms/newton_schulz_options.h"

#include <algorithm>
#include <cmath>

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

linalg::NewtonSchulzSteps newton_schulz_steps(const Options& options, at::ScalarType dtype) {
  const std::string_view kind = options.text("newton_schulz");
  const int64_t steps = options.integer("ns_steps");
  if (kind == "jordan") return {std::vector<linalg::Quintic>(steps, linalg::kJordan)};
  const bool on_gram = kind == "gram";
  const double slack = on_gram && dtype == at::kBFloat16 ? linalg::kHalfGramSlack : linalg::kPolarExpressSlack;
  return {linalg::polar_express(steps, slack), linalg::kPolarExpressSlack, on_gram};
}

int64_t newton_schulz_operations(int64_t m, int64_t n, const BatchShape& shape, const Options& options) {
  const at::ScalarType dtype = orthonormalized_dtype(shape, options);
  return linalg::newton_schulz_operations(m, n, newton_schulz_steps(options, dtype), dtype);
}

at::Tensor orthonormalize_as_asked(const at::Tensor& X, const Options& options, const at::Tensor& squares) {
  const Precision precision = precision_asked(options);
  return linalg::newton_schulz(X, newton_schulz_steps(options, X.scalar_type()), precision, squares);
}

linalg::FactorRule rates_of(const Batch& batch, const Options& options) {
  return {factor_on_lr(batch, options), options.number("lr"), options.number("weight_decay"), batch.multipliers,
          batch.gradients.left_out};
}

}  // namespace torchdion::algorithms
