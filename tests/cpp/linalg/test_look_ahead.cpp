
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "linalg/accumulate.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

class LookAhead : public testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType, at::ScalarType>> {};

TEST_P(LookAhead, AddsTheGradientToTheMomentumAndBothTogetherInEveryLayout) {
  const auto [l, m, g] = GetParam();
  const double computing = m == at::kDouble || g == at::kDouble ? 0x1p-53 : 0x1p-24;
  for (const auto& [count, rows, cols] : {std::tuple{1, 1, 1}, {2, 1, 7}, {3, 9, 1}, {1, 40, 700}, {3, 33, 65}}) {
    const at::Tensor M0 = normal({count, rows, cols}, 1, m), G = normal({count, rows, cols}, 2, g);
    for (int layout = 0; layout < 8; ++layout) {
      for (const LookAheadFactors& ahead : {LookAheadFactors{1, 0.9}, {0.25, 1}, {}}) {
        SCOPED_TRACE(testing::Message() << count << " of " << rows << "×" << cols << ", layout " << layout);
        const at::Tensor L = laid_out(at::full({count, rows, cols}, std::nan(""), l), layout & 4);
        const at::Tensor M = laid_out(M0, layout & 2).clone();
        look_ahead_(Matrices(L), Matrices(M), Matrices(laid_out(G, layout & 1)), {.keep = 0.75, .factor = -0.5}, ahead);
        const at::Tensor gradient = -0.5 * G.to(at::kDouble), momentum = 0.75 * M0.to(at::kDouble) + gradient;
        const double rounding = 8 * computing;  // where both nearly cancel, their sum has more
        EXPECT_LE(relative_error(M, momentum), 2 * unit_roundoff(m) + rounding);
        const at::Tensor stored = M.to(at::kDouble), expected = ahead.gradient * gradient + ahead.momentum * stored;
        EXPECT_LE(relative_error(L, expected), 2 * unit_roundoff(l) + rounding);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LookAhead,
                         testing::Combine(testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                                          testing::ValuesIn(kEveryDtype), testing::ValuesIn(kEveryDtype)));

// The rule of accumulate_(), to the last bit.
TEST(LookAheadRule, MomentaAreThoseThatAccumulateMakes) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const at::ScalarType dtype : kEveryDtype) {
    at::Tensor M = normal({3, 5, 90}, 1, dtype), G = normal({3, 5, 90}, 2, dtype);
    M[0][0][0] = 0x1p-140;
    G[0][0][0] = 0;
    G[0][4][7] = nan;
    G[1][2][3] = infinity;
    const at::Tensor divisor = at::tensor({4.0F}), unchanged = at::tensor({0.0F, 1.0F, 0.0F});
    for (const bool zeroes : {false, true}) {
      const at::Tensor counters = at::zeros({2}, at::kLong);
      auto* counted = counters.mutable_data_ptr<int64_t>();
      GradientRule rule{.keep = 0.9, .factor = 2, .divisor = divisor.const_data_ptr<float>()};
      rule.frozen.unchanged = unchanged.const_data_ptr<float>();
      if (zeroes) rule.zeroed = counted;
      const at::Tensor expected = M.clone(), actual = M.clone(), L = at::empty_like(M);
      accumulate_(Matrices(expected), Matrices(G), rule);
      if (zeroes) rule.zeroed = counted + 1;
      look_ahead_(Matrices(L), Matrices(actual), Matrices(G), rule, {});
      EXPECT_TRUE(bitwise_equal(actual, expected)) << dtype;
      EXPECT_EQ(counted[0], zeroes ? 2 : 0);
      EXPECT_EQ(counted[0], counted[1]);
      EXPECT_EQ(L[1].abs().max().item<double>(), 0) << "of a matrix that stays";
      EXPECT_TRUE(at::allclose(L[2], expected[2], 0, 0));
      EXPECT_EQ(L[0].isnan().any().item<bool>(), !zeroes);
    }
  }
}

TEST(LookAheadRule, OfAStepThatIsLeftOutNothingIsWrittenButZeros) {
  const at::Tensor M = normal({2, 5, 6}, 1, at::kFloat), G = normal({2, 5, 6}, 2, at::kFloat), before = M.clone();
  G[0][1][2] = std::nan("");
  const at::Tensor left_out = at::tensor({1.0F}), L = at::full({2, 5, 6}, std::nan(""), at::kBFloat16);
  const at::Tensor counter = at::zeros({1}, at::kLong);
  look_ahead_(Matrices(L), Matrices(M), Matrices(G),
              {.zeroed = counter.mutable_data_ptr<int64_t>(), .frozen = {left_out.const_data_ptr<float>()}}, {1, 0.9});
  EXPECT_TRUE(bitwise_equal(M, before));
  EXPECT_EQ(L.abs().max().item<double>(), 0);
  EXPECT_EQ(counter.item<int64_t>(), 0);
}

}  // namespace

}  // namespace torchdion::linalg
