#include "algorithms/table.h"

#include "algorithms/elementwise.h"
#include "algorithms/shared.h"

namespace torchdion::algorithms {

namespace {

constexpr Option kLionOptions[] = {
    {"betas", Pair{0.95, 0.98}, kBetas, "β₁ of the update and β₂ of the momentum (arXiv 2302.06675)"},
    kOwnersOption,
    kMomentumDtype,
};

constexpr State kLionStates[] = {{.name = "momentum", .dtype_option = "momentum_dtype"}};

comm::Task<> lion(Batch batch, Options options) {
  co_await average_gradients(batch);
  const auto [beta1, beta2] = options.pair("betas");
  linalg::lion_(lists_of(batch), {beta1, beta2});
}

}  // namespace

// Lion (arXiv 2302.06675): X ← (1 − η λ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G.
constexpr Algorithm kLion{
    .name = "lion",
    .title = "Lion",
    .takes = Takes::elements,
    .options = kLionOptions,
    .states = kLionStates,
    .cost = elementwise_cost,
    .update = lion,
};

}  // namespace torchdion::algorithms
