#include "algorithms/newton_schulz_options.h"

#include <algorithm>
#include <cmath>

#include "linalg/backend.h"

namespace torchdion::algorithms {

at::ScalarType orthonormalized_dtype(const BatchShape& shape, const Options& options) {
  const bool in_half = options.text("precision") == "medium" && shape.computing != at::kDouble;
  return in_half ? at::kBFloat16 : shape.computing;
}

int64_t room_for_orthonormalized(int64_t numel, const BatchShape& shape, const Options& options) {
  const int64_t bytes = numel * element_size(orthonormalized_dtype(shape, options));
  const int64_t element = element_size(shape.computing);
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

void move_weights_(const linalg::Matrices& X, const linalg::Matrices& U, const Batch& batch, const Options& options,
                   const linalg::RowRule& rows) {
  linalg::FactorRule factors = batch.factors;
  double& of_shape = factors.shape_factor;
  if (is_none(options.at("adjust_lr"))) {
    of_shape = 1;
  } else if (options.text("adjust_lr") == "rms_norm") {
    of_shape = 0.2 * std::sqrt(static_cast<double>(std::max(batch.shape.m, batch.shape.n)));
  } else if (options.text("adjust_lr") == "original") {
    of_shape = std::max(1., of_shape);
  }
  linalg::axpby_(X, U, linalg::device_factors(factors, batch.workspace.options()), batch.direction, rows);
}

}  // namespace torchdion::algorithms
