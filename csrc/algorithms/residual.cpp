#include "algorithms/residual.h"

#include <c10/util/Exception.h>

#include "words.h"

namespace torchdion::algorithms {

std::optional<Residual> residual_of(const Options& options) {
  if (!options.has("residual") || is_none(options.at("residual"))) return std::nullopt;
  return enumerator<Residual>(kResidual, options.text("residual"));
}

bool orthonormalizes_right_factor(const Options& options) {
  return options.has("right_factor") && options.text("right_factor") == "orthonormal";
}

void check_residual(bool decoupled, const Options& options, const std::string& name) {
  TORCH_CHECK_VALUE(!decoupled || !residual_of(options), prefix(), assigned(kResidualOption, options.at("residual")),
                    " needs the same momentum on all replicas, and those of ", name,
                    " keep momenta of their own: average gradients before the step, or leave it out");
}

}  // namespace torchdion::algorithms
