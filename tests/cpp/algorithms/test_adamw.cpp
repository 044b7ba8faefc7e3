#include "algorithms/table.h"

#include <gtest/gtest.h>

#include <limits>

#include "algorithms/batch.h"
#include "algorithms/options_by_name.h"
#include "comm/scheduler.h"
#include "tensors.h"

namespace torchdion::algorithms {

namespace {

struct AdamWDtypes {
  at::ScalarType X, G, M, V;
};

class AdamW : public testing::TestWithParam<AdamWDtypes> {};

// M ← β₁ M + (1 − β₁) G;  V ← β₂ V + (1 − β₂) G²;
// X ← (1 − ηλ) X − η (M / (1 − β₁ᵗ)) / (sqrt(V / (1 − β₂ᵗ)) + ε)
TEST_P(AdamW, FollowsItsFormulasWithItsOwnStepForEveryParameter) {
  const auto [x_dtype, g_dtype, m_dtype, v_dtype] = GetParam();
  const Options options =
      options_of(kAdamW, {{"lr", 0.1}, {"betas", Pair{0.8, 0.9}}, {"weight_decay", 0.5}, {"epsilon", 1e-3}});
  const std::vector<int64_t> sizes = {1, 5, 1023, 1024, 1025, 40'000};
  Batch batch;
  batch.lists.states.resize(2);
  std::vector<at::Tensor> x, m, v, starts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    batch.lists.X.push_back(normal({sizes[i]}, 1, x_dtype));
    batch.lists.states[0].push_back(at::zeros({sizes[i]}, m_dtype));
    batch.lists.states[1].push_back(at::zeros({sizes[i]}, v_dtype));
    batch.lists.step.push_back(static_cast<int64_t>(i));
    x.push_back(batch.lists.X[i].to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
    m.push_back(at::zeros({sizes[i]}, at::kDouble));
    v.push_back(at::zeros({sizes[i]}, at::kDouble));
    starts.push_back(x[i]);
  }
  for (uint64_t round = 0; round < 4; ++round) {
    batch.lists.G.clear();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      batch.lists.G.push_back(normal({sizes[i]}, 3 + round, g_dtype));
      const at::Tensor g = batch.lists.G[i].to(at::kDouble);
      const double t = static_cast<double>(++batch.lists.step[i]);
      m[i] = 0.8 * m[i] + 0.2 * g;
      v[i] = 0.9 * v[i] + 0.1 * g.square();
      const at::Tensor root = (v[i] / (1 - std::pow(0.9, t))).sqrt();
      x[i] = (1 - 0.1 * 0.5) * x[i] - 0.1 * (m[i] / (1 - std::pow(0.8, t))) / (root + 1e-3);
    }
    comm::run(update(kAdamW, batch, options));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double storage = std::max({unit_roundoff(x_dtype), unit_roundoff(m_dtype), unit_roundoff(v_dtype)});
    EXPECT_LE(travel_error(batch.lists.X[i], x[i], starts[i]), 40 * storage) << sizes[i];
    EXPECT_LE(relative_error(batch.lists.states[0][i], m[i]), 10 * unit_roundoff(m_dtype)) << sizes[i];
    EXPECT_LE(relative_error(batch.lists.states[1][i], v[i]), 10 * unit_roundoff(v_dtype)) << sizes[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AdamW,
                         testing::Values(AdamWDtypes{at::kDouble, at::kDouble, at::kDouble, at::kDouble},
                                         AdamWDtypes{at::kFloat, at::kFloat, at::kFloat, at::kFloat},
                                         AdamWDtypes{at::kBFloat16, at::kBFloat16, at::kBFloat16, at::kBFloat16},
                                         AdamWDtypes{at::kFloat, at::kHalf, at::kBFloat16, at::kFloat}));

TEST(AdamWStep, CountsNonfiniteEntriesAsZeroOrLetsThemThrough) {
  at::Tensor G = normal({3000}, 5, at::kFloat);
  G[0] = std::numeric_limits<double>::quiet_NaN();
  G[2999] = -std::numeric_limits<double>::infinity();
  for (bool zero : {false, true}) {
    const at::Tensor X = normal({3000}, 1, at::kFloat), M = at::zeros({3000}), V = at::zeros({3000});
    int64_t zeroed = 0;
    Batch batch;
    batch.lists = {.X = {X}, .G = {G}, .states = {{M}, {V}}, .step = {1}};
    if (zero) batch.gradients.zeroed = &zeroed;
    comm::run(update(kAdamW, batch, options_of(kAdamW, {})));
    EXPECT_EQ(zeroed, zero ? 2 : 0);
    EXPECT_EQ(X.isfinite().logical_not().sum().item<int64_t>(), zero ? 0 : 2);
  }
}

TEST(AdamWStep, MaximizesByTakingTheGradientWithTheOtherSign) {
  std::vector<at::Tensor> results;
  for (bool maximize : {false, true}) {
    const at::Tensor X = normal({10}, 1), M = at::zeros({10}, at::kDouble), V = at::zeros({10}, at::kDouble);
    Batch batch;
    batch.lists = {.X = {X}, .G = {normal({10}, 2) * (maximize ? -1 : 1)}, .states = {{M}, {V}}, .step = {1}};
    comm::run(update(kAdamW, batch, options_of(kAdamW, {{"maximize", maximize}})));
    results.push_back(X);
  }
  EXPECT_TRUE(bitwise_equal(results[0], results[1]));
}

TEST(AdamWStep, TakesTheGradientTimesItsFactorIntoAccount) {
  std::vector<at::Tensor> results;
  for (double scale : {1.0, 65'536.0}) {
    const at::Tensor X = normal({3000}, 1, at::kBFloat16), M = at::zeros({3000}), V = at::zeros({3000});
    Batch batch;
    batch.lists = {.X = {X}, .G = {normal({3000}, 2, at::kFloat) * scale}, .states = {{M}, {V}}, .step = {1}};
    batch.gradients.factor = 1 / scale;
    comm::run(update(kAdamW, batch, options_of(kAdamW, {})));
    results.insert(results.end(), {X, M, V});
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(bitwise_equal(results[i], results[3 + i])) << i;
}

}  // namespace

}  // namespace torchdion::algorithms
