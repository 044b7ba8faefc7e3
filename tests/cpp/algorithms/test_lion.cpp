#include "algorithms/table.h"

#include <gtest/gtest.h>

#include <limits>

#include "algorithms/batch.h"
#include "algorithms/options_by_name.h"
#include "comm/scheduler.h"
#include "tensors.h"

namespace torchdion::algorithms {

namespace {

// Around the length of one run of the loop, and enough of them for several threads.
const std::vector<int64_t> kLionSizes = {1, 5, 1023, 1024, 1025, 40'000};

struct LionDtypes {
  at::ScalarType X, G, M;
};

class Lion : public testing::TestWithParam<LionDtypes> {};

// X ← (1 − ηλ) X − η sign(β₁ M + (1 − β₁) G);  M ← β₂ M + (1 − β₂) G
TEST_P(Lion, FollowsItsFormulas) {
  const auto [x_dtype, g_dtype, m_dtype] = GetParam();
  const Options options = options_of(kLion, {{"lr", 0.125}, {"betas", Pair{0.875, 0.9375}}, {"weight_decay", 0.5}});
  Batch batch;
  batch.lists.states.resize(1);
  std::vector<at::Tensor> x, m;
  for (int64_t size : kLionSizes) {
    batch.lists.X.push_back(normal({size}, 1, x_dtype));
    batch.lists.states[0].push_back(normal({size}, 2, m_dtype));
    x.push_back(batch.lists.X.back().to(at::kDouble));
    m.push_back(batch.lists.states[0].back().to(at::kDouble));
  }
  for (uint64_t step = 0; step < 3; ++step) {
    batch.lists.G.clear();
    for (std::size_t i = 0; i < x.size(); ++i) {
      batch.lists.G.push_back(normal({kLionSizes[i]}, 3 + step, g_dtype));
      const at::Tensor g = batch.lists.G[i].to(at::kDouble);
      // Rounded as they are stored, and with betas that binary numbers hold, so that no sign is a matter of rounding.
      x[i] = ((1 - 0.125 * 0.5) * x[i] - 0.125 * (0.875 * m[i] + 0.125 * g).sign()).to(x_dtype).to(at::kDouble);
      m[i] = (0.9375 * m[i] + 0.0625 * g).to(m_dtype).to(at::kDouble);
    }
    comm::run(update(kLion, batch, options));
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    // FP32 before it is rounded to less may end one unit away.
    EXPECT_LE(relative_error(batch.lists.X[i], x[i]), 3 * unit_roundoff(x_dtype)) << kLionSizes[i];
    EXPECT_LE(relative_error(batch.lists.states[0][i], m[i]), 3 * unit_roundoff(m_dtype)) << kLionSizes[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Lion,
                         testing::Values(LionDtypes{at::kDouble, at::kDouble, at::kDouble},
                                         LionDtypes{at::kFloat, at::kFloat, at::kFloat},
                                         LionDtypes{at::kBFloat16, at::kBFloat16, at::kBFloat16},
                                         LionDtypes{at::kHalf, at::kFloat, at::kFloat},
                                         LionDtypes{at::kFloat, at::kBFloat16, at::kHalf},
                                         LionDtypes{at::kDouble, at::kFloat, at::kBFloat16}));

struct OneStep {
  at::Tensor X, M;
  int64_t zeroed = 0;
};

OneStep lion_step(const at::Tensor& G, bool zero_nonfinite, NamedValues values, double factor = 1) {
  OneStep result{normal({G.numel()}, 1, at::kFloat), normal({G.numel()}, 2, at::kFloat)};
  Batch batch;
  batch.lists = {.X = {result.X}, .G = {G}, .states = {{result.M}}, .step = {}};
  batch.gradients.factor = factor;
  if (zero_nonfinite) batch.gradients.zeroed = &result.zeroed;
  comm::run(update(kLion, batch, options_of(kLion, values)));
  return result;
}

TEST(LionStep, TakesNoStepWhereTheMixIsExactlyZero) {
  const at::Tensor X = at::ones({3}), M = at::zeros({3}), G = at::tensor({2.0f, 0.0f, -2.0f});
  Batch batch;
  batch.lists = {.X = {X}, .G = {G}, .states = {{M}}, .step = {}};
  comm::run(update(kLion, batch, options_of(kLion, {{"lr", 0.25}, {"weight_decay", 0.0}})));
  EXPECT_TRUE(at::equal(X, at::tensor({0.75f, 1.0f, 1.25f})));
}

TEST(LionStep, MaximizesByTakingTheGradientWithTheOtherSign) {
  const at::Tensor G = normal({3000}, 5, at::kFloat);
  const OneStep up = lion_step(G, false, {{"maximize", true}}), down = lion_step(-G, false, {});
  EXPECT_TRUE(bitwise_equal(up.X, down.X));
  EXPECT_TRUE(bitwise_equal(up.M, down.M));
}

TEST(LionStep, TakesTheGradientTimesItsFactorIntoAccount) {
  const at::Tensor G = normal({3000}, 5, at::kFloat);
  for (bool maximize : {false, true}) {
    const OneStep expected = lion_step(G, false, {{"maximize", maximize}});
    const OneStep scaled = lion_step(G * 4096, false, {{"maximize", maximize}}, 1.0 / 4096);
    EXPECT_TRUE(bitwise_equal(scaled.X, expected.X));
    EXPECT_TRUE(bitwise_equal(scaled.M, expected.M));
  }
}

TEST(LionStep, LetsANaNReachTheWeightsOrCountsItAsZero) {
  at::Tensor G = normal({3000}, 5, at::kFloat);
  G[1] = std::numeric_limits<double>::quiet_NaN();
  G[2999] = std::numeric_limits<double>::infinity();
  const OneStep let_through = lion_step(G, false, {});
  EXPECT_TRUE(let_through.X[1].isnan().item<bool>());
  EXPECT_TRUE(let_through.M[2999].isinf().item<bool>());
  EXPECT_EQ(let_through.X.isfinite().logical_not().sum().item<int64_t>(), 1) << "the sign of infinity is 1";
  const OneStep zeroed = lion_step(G, true, {}), reference = lion_step(G.nan_to_num(0, 0, 0), false, {});
  EXPECT_EQ(zeroed.zeroed, 2);
  EXPECT_TRUE(bitwise_equal(zeroed.X, reference.X));
  EXPECT_TRUE(bitwise_equal(zeroed.M, reference.M));
}

TEST(LionStep, CountsEveryNonfiniteEntry) {
  EXPECT_EQ(lion_step(at::full({5000}, std::nan("")), true, {}).zeroed, 5000);
}

}  // namespace

}  // namespace torchdion::algorithms
