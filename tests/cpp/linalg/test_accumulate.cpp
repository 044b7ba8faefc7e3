#include "linalg/accumulate.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

struct Layouts {
  const char* name;
  bool momentum_by_columns;
  at::Tensor (*gradient)(const at::Tensor&);
};

at::Tensor every_second(const at::Tensor& G) {
  const at::Tensor wide = at::zeros({G.size(0), G.size(1), 2 * G.size(2)}, G.options());
  const at::Tensor view = wide.slice(2, 0, 2 * G.size(2), 2);
  view.copy_(G);
  return view;
}

at::Tensor as_it_is(const at::Tensor& G) { return G; }

class Accumulate : public testing::TestWithParam<Layouts> {};

TEST_P(Accumulate, AddsAMultipleInEveryDtypeSizeAndLayout) {
  for (at::ScalarType momentum : kEveryDtype) {
    for (at::ScalarType gradient : kEveryDtype) {
      for (const auto& [count, m, n] :
           {std::tuple{1, 1, 1}, {2, 1, 7}, {3, 9, 1}, {2, 5, 8}, {1, 300, 200}, {2, 40, 300}}) {
        SCOPED_TRACE(testing::Message() << momentum << " += " << gradient << ", " << count << " of " << m << "×" << n);
        const at::Tensor M0 = normal({count, m, n}, 1, momentum), values = normal({count, m, n}, 2, gradient);
        const at::Tensor G = GetParam().gradient(values);
        const at::Tensor M = GetParam().momentum_by_columns ? column_major(M0).clone() : M0.clone();
        accumulate_(Matrices(M), Matrices(G), {.factor = -0.7});
        const at::Tensor m0 = M0.to(at::kDouble), g = -0.7 * values.to(at::kDouble);
        const double computing = momentum == at::kDouble ? 0x1p-53 : 0x1p-24;
        const at::Tensor allowed = (m0 + g).abs() * unit_roundoff(momentum) + (m0.abs() + g.abs()) * 4 * computing;
        EXPECT_TRUE((M.to(at::kDouble) - m0 - g).abs().le(allowed).all().item<bool>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Accumulate,
                         testing::Values(Layouts{"BothByRows", false, as_it_is},
                                         Layouts{"BothByColumns", true, column_major},
                                         Layouts{"GradientByColumns", false, column_major},
                                         Layouts{"MomentumByColumns", true, as_it_is},
                                         Layouts{"GradientWithGaps", false, every_second}),
                         [](const auto& info) { return info.param.name; });

TEST(Accumulate, DecaysTheMomentumFirst) {
  for (const at::ScalarType dtype : kEveryDtype) {
    const at::Tensor M = normal({2, 5, 300}, 1, dtype), G = normal({2, 5, 300}, 2, dtype);
    const at::Tensor expected = 0.75 * M.to(at::kDouble) - 0.5 * G.to(at::kDouble);
    int64_t zeroed = 0;
    for (int64_t* counter : {static_cast<int64_t*>(nullptr), &zeroed}) {
      const at::Tensor decayed = M.clone();
      accumulate_(Matrices(decayed), Matrices(G), {.keep = 0.75, .factor = -0.5, .zeroed = counter});
      EXPECT_LE(relative_error(decayed, expected), 2 * unit_roundoff(dtype)) << dtype;
    }
  }
}

TEST(Accumulate, MakesDenormalMomentaZero) {
  for (const auto& [dtype, least] :
       {std::pair{at::kDouble, 0x1p-1022}, {at::kFloat, 0x1p-126}, {at::kBFloat16, 0x1p-126}, {at::kHalf, 0x1p-19}}) {
    const at::Tensor M = at::tensor({least, -least, least / 2, -least / 2}, at::kDouble).to(dtype).view({1, 4});
    const at::Tensor expected = at::tensor({least, -least, 0.0, 0.0}, at::kDouble).to(dtype).view({1, 4});
    accumulate_(Matrices(M), Matrices(at::zeros({1, 4}, dtype)));
    EXPECT_TRUE(at::equal(M, expected)) << dtype;
  }
}

// 2·10⁵ is beyond FP16, and infinite gradients are for the policies to see.
TEST(Accumulate, StoresFiniteSumsBeyondFP16AsItsLargestNumberAndNothingElse) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (at::ScalarType gradient : {at::kHalf, at::kFloat}) {
    for (const auto& [strided, zeroes] : {std::pair{false, false}, {true, false}, {false, true}}) {
      const at::Tensor M = at::tensor({60000.0, -60000.0, 60000.0, 1.0, 1.0, 1.0}).to(at::kHalf).view({1, 6});
      const at::Tensor G = at::tensor({7000.0, -7000.0, -7000.0, infinity, -infinity, nan}).to(gradient).view({1, 6});
      int64_t zeroed = 0;
      accumulate_(Matrices(M), Matrices(strided ? every_second(G.unsqueeze(0))[0] : G),
                  {.factor = 2, .zeroed = zeroes ? &zeroed : nullptr});
      const at::Tensor expected = zeroes ? at::tensor({65504.0, -65504.0, 46016.0, 1.0, 1.0, 1.0})
                                         : at::tensor({65504.0, -65504.0, 46016.0, infinity, -infinity, nan});
      EXPECT_TRUE(at::allclose(M.to(expected.scalar_type())[0], expected, 0, 0, /*equal_nan=*/true)) << M;
      EXPECT_EQ(zeroed, zeroes ? 3 : 0);
    }
  }
}

// Of FP64 weights with smaller momenta: a gradient of 1e39 is finite, and a policy lets it pass.
TEST(Accumulate, StoresFiniteSumsBeyondAnyNarrowerTypeAsItsLargestNumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [dtype, largest] : {std::pair<at::ScalarType, double>{at::kFloat, std::numeric_limits<float>::max()},
                                       {at::kBFloat16, std::numeric_limits<at::BFloat16>::max()},
                                       {at::kHalf, 65504.0}}) {
    const at::Tensor A = at::empty({1, 4}, dtype),
                     B = at::tensor({1e39, -1e300, infinity, 1.0}, at::kDouble).view({1, 4});
    copy_(Matrices(A), Matrices(B), 1);
    const at::Tensor expected = at::tensor({largest, -largest, infinity, 1.0}, at::kDouble);
    EXPECT_TRUE(at::equal(A.to(at::kDouble)[0], expected)) << A;
  }
}

TEST(Accumulate, KeepsShortMomentaOfMatricesThatAreUnchanged) {
  for (at::ScalarType dtype : {at::kHalf, at::kFloat}) {
    const at::Tensor least = at::full({}, dtype == at::kHalf ? 0x1p-24 : 0x1p-149, at::kDouble);
    const at::Tensor M = least.expand({3, 5, 4}).to(dtype).contiguous(), before = M.clone();
    const at::Tensor G = at::zeros({3, 5, 4}, dtype), unchanged = at::tensor({0.0f, 1.0f, 0.0f});
    int64_t zeroed = 0;
    for (int64_t* counted : {static_cast<int64_t*>(nullptr), &zeroed}) {
      M.copy_(before);
      accumulate_(Matrices(M), Matrices(G),
                  {.zeroed = counted, .frozen = {.unchanged = unchanged.const_data_ptr<float>()}});
      EXPECT_TRUE(bitwise_equal(M[1], before[1]));
      EXPECT_TRUE(M[0].eq(0).all().item<bool>() && M[2].eq(0).all().item<bool>());
    }
  }
}

TEST(Accumulate, TakesAGradientThatIsOneNumberExpanded) {
  const at::Tensor M = at::zeros({6, 5}), G = at::full({}, 3.0f).expand({6, 5});
  accumulate_(Matrices(M), Matrices(G), {.factor = 2});
  EXPECT_TRUE(at::equal(M, at::full({6, 5}, 6.0f)));
}

TEST(Accumulate, ReadsTheDivisorAndWhetherItIsLeftOutFromMemory) {
  const at::Tensor M = normal({6, 5}, 1), G = normal({6, 5}, 2), expected = M + 0.5 / 64 * G;
  float divisor = 64, left_out = 1;
  const GradientRule rule{.factor = 0.5, .divisor = &divisor, .frozen = {&left_out}};
  const at::Tensor before = M.clone();
  accumulate_(Matrices(M), Matrices(G), rule);
  EXPECT_TRUE(bitwise_equal(M, before));
  left_out = 0;
  accumulate_(Matrices(M), Matrices(G), rule);
  EXPECT_LE(relative_error(M, expected), 1e-15);
}

TEST(Accumulate, TakesAGradientWhoseColumnsAreFurtherApartThanItsRows) {
  const at::Tensor M = at::zeros({5, 8}), wide = normal({8, 5, 8}, 1, at::kFloat), G = wide.select(2, 3).t();
  ASSERT_EQ(G.strides(), at::IntArrayRef({8, 40}));  // its rows as far apart as those of a contiguous matrix
  accumulate_(Matrices(M), Matrices(G));
  EXPECT_TRUE(at::equal(M, G));
}

TEST(Accumulate, TakesMoreMatricesThanOneLaunchTakesPointers) {
  const at::Tensor M0 = normal({8201, 2, 3}, 1), M = M0.clone(), G = normal({8201, 2, 3}, 2);
  accumulate_(Matrices(M), Matrices(G));
  EXPECT_TRUE(at::equal(M, M0 + G));
}

class AccumulateNonfinite : public testing::TestWithParam<at::ScalarType> {};

// 300×200: enough for several threads, each of which counts.
at::Tensor with_three_nonfinite(at::ScalarType dtype) {
  at::Tensor G = normal({300, 200}, 2, dtype);
  G[0][3] = std::numeric_limits<double>::quiet_NaN();
  G[150][0] = std::numeric_limits<double>::infinity();
  G[299][199] = -std::numeric_limits<double>::infinity();
  return G;
}

TEST_P(AccumulateNonfinite, EntriesCountAsZeroWhenAskedAndAreCounted) {
  const at::Tensor G = with_three_nonfinite(GetParam()), M0 = normal({300, 200}, 1);
  for (bool by_columns : {false, true}) {
    const at::Tensor M = M0.clone(), expected = M0.clone();
    accumulate_(Matrices(expected), Matrices(G.nan_to_num(0, 0, 0)));
    int64_t zeroed = 0;
    accumulate_(Matrices(M), Matrices(by_columns ? column_major(G) : G), {.zeroed = &zeroed});
    EXPECT_EQ(zeroed, 3);
    EXPECT_TRUE(at::equal(M, expected));
    count_nonfinite(Matrices(by_columns ? column_major(G) : G), &zeroed);
    EXPECT_EQ(zeroed, 6);
  }
}

TEST_P(AccumulateNonfinite, EntriesReachTheSumWhenNotAskedAndOnlyTheirOwnPlaces) {
  const at::Tensor M = normal({300, 200}, 1, GetParam());
  accumulate_(Matrices(M), Matrices(with_three_nonfinite(GetParam())));
  int64_t found = 0;
  count_nonfinite(Matrices(M), &found);
  EXPECT_EQ(found, 3);
  EXPECT_TRUE(M[0][3].isnan().item<bool>());
  EXPECT_TRUE(M[299][199].isneginf().item<bool>());
}

TEST_P(AccumulateNonfinite, EntriesAreAllCounted) {
  const at::Tensor M = at::zeros({3, 60, 70}), G = at::full({3, 60, 70}, std::nan(""), GetParam());
  int64_t zeroed = 0;
  accumulate_(Matrices(M), Matrices(G), {.zeroed = &zeroed});
  EXPECT_EQ(zeroed, 3 * 60 * 70);
  count_nonfinite(Matrices(G), &zeroed);
  EXPECT_EQ(zeroed, 2 * 3 * 60 * 70);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AccumulateNonfinite, testing::ValuesIn(kEveryDtype),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace

}  // namespace torchdion::linalg
