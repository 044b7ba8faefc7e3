#include "algorithms/table.h"

#include "algorithms/elementwise.h"
#include "algorithms/shared.h"

namespace torchdion::algorithms {

namespace {

constexpr Option kAdamWOptions[] = {
    {"betas", Pair{0.9, 0.95}, kBetas, "β₁ and β₂ of the moments (arXiv 1711.05101)"},
    {"epsilon", 1e-8, kNotNegative, "ε beside the root of the second moment"},
    kOwnersOption,
    kMomentumDtype,
    kVarianceDtype,
};

constexpr State kAdamWStates[] = {
    {.name = "momentum", .dtype_option = "momentum_dtype"},
    {.name = "variance", .dtype_option = "variance_dtype"},
};

comm::Task<> adamw(Batch batch, Options options) {
  co_await average_gradients(batch);
  const auto [beta1, beta2] = options.pair("betas");
  linalg::adamw_(lists_of(batch), {beta1, beta2, options.number("epsilon")});
}

}  // namespace

// AdamW (arXiv 1711.05101) with bias correction, as torch.optim.AdamW computes it.
constexpr Algorithm kAdamW{
    .name = "adamw",
    .title = "AdamW",
    .takes = Takes::elements,
    .options = kAdamWOptions,
    .states = kAdamWStates,
    .cost = elementwise_cost,
    .update = adamw,
};

}  // namespace torchdion::algorithms
