#include "linalg/triangular_inverse.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "linalg/backend.h"
#include "linalg/cpu/bfloat16_products.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

struct GramSize {
  int64_t count, m, r;
};

class Gram : public testing::TestWithParam<GramSize> {};

// Of more than 96 columns the blocks above the diagonal are left out, and more than 192 rows are summed in pieces.
const auto kGramSizes = testing::Values(GramSize{1, 1, 1}, GramSize{3, 5, 1}, GramSize{2, 4, 7}, GramSize{1, 200, 30},
                                        GramSize{2, 500, 97}, GramSize{1, 193, 200});

TEST_P(Gram, IsTheLowerTriangleOfPTransposedPInFP64) {
  const auto [count, m, r] = GetParam();
  for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor P = normal({count, m, r}, 1, dtype), exact = P.to(at::kDouble);
    const at::Tensor H = gram(Matrices(P));
    ASSERT_EQ(H.scalar_type(), at::kDouble);
    const at::Tensor magnitude = exact.abs().mT().matmul(exact.abs());
    const at::Tensor error = (H - exact.mT().matmul(exact)).abs().tril();
    EXPECT_TRUE(error.le(magnitude * 0x1p-53 * 2 * static_cast<double>(m)).all().item<bool>()) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Gram, kGramSizes);

// A GPU copies 2²³ entries to FP64 at a time.
TEST(GramOfAStack, OfMoreRowsThanAreCopiedAtOnceIsThatOfAll) {
  const int64_t m = (1 << 22) + 7;
  const at::Tensor P = normal({2, m, 1}, 1, at::kFloat), H = gram(Matrices(P));
  EXPECT_LE(relative_error(H.flatten(), P.to(at::kDouble).square().sum({1, 2})), 1e-12);
}

TEST(GramOfAStack, OfNoMatrixOrNoRowsIsEmptyOrZero) {
  EXPECT_EQ(gram(Matrices(at::empty({0, 5, 3}, at::kFloat))).sizes(), at::IntArrayRef({0, 3, 3}));
  EXPECT_TRUE(at::equal(gram(Matrices(at::empty({2, 0, 3}, at::kFloat))), at::zeros({2, 3, 3}, at::kDouble)));
}

bool sums_in_single(Precision precision) { return backend_of(at::kCPU).sum_dtype(at::kFloat, precision) == at::kFloat; }

class GramPrecision : public testing::TestWithParam<Precision> {};

TEST_P(GramPrecision, IsThatOfPWithTheEntriesThatItLeavesInPlace) {
  const at::Tensor P = normal({2, 50, 9}, 1, at::kFloat), H = gram(Matrices(P), GetParam()), exact = P.to(at::kDouble);
  const bool in_single = sums_in_single(GetParam()) || GetParam() == Precision::medium;
  EXPECT_LE(relative_error(H.tril(), exact.mT().matmul(exact).tril()), in_single ? 2e-7 : 1e-15);
}

INSTANTIATE_TEST_SUITE_P(Precisions, GramPrecision,
                         testing::Values(Precision::highest, Precision::high, Precision::medium));

TEST_P(GramPrecision, HoldsTheProductsOfColumnsOfAnyScale) {
  const at::Tensor scales = at::logspace(-30, 30, 13, 10, at::kDouble);
  const at::Tensor P = (normal({2, 200, 13}, 1) * scales).to(at::kFloat);
  for (const at::Tensor& some : {P, P.slice(1, 0, 1).clone(), (P.slice(2, 6, 7) * 0).clone()}) {
    at::Tensor exponents;
    const at::Tensor H = gram(Matrices(some), GetParam(), &exponents), exact = some.to(at::kDouble);
    EXPECT_EQ(exponents.defined(), sums_in_single(GetParam()));
    const at::Tensor lengths = at::linalg_vector_norm(exact, 2, {1}).clamp_min(1e-40);
    const at::Tensor errors = (H - exact.mT().matmul(exact)).tril().abs() / lengths.unsqueeze(2) / lengths.unsqueeze(1);
    EXPECT_LE(errors.max().item<double>(), 1e-6) << some.sizes();
  }
}

TEST_P(GramPrecision, SaysByWhichPowersOfTwoItHasScaledColumns) {
  const at::Tensor scales = at::logspace(-30, 30, 13, 10, at::kDouble);
  const at::Tensor P = (normal({2, 200, 13}, 1) * scales).to(at::kFloat), given = P.to(at::kDouble);
  at::Tensor exponents;
  gram(Matrices(P), GetParam(), &exponents);
  const at::Tensor powers = exponents.defined() ? exponents.to(at::kDouble).exp2() : at::ones({2, 13}, at::kDouble);
  EXPECT_LE(relative_error(P * powers.unsqueeze(1) / scales, given / scales), 0x1p-8);
  if (exponents.defined()) {
    EXPECT_GT(exponents[0][0].item<int>(), -110);
    EXPECT_LT(exponents[0][0].item<int>(), -90);
    EXPECT_EQ(exponents[0][6].item<int>(), 0);
    EXPECT_LE(P.abs().amax().item<double>(), 0x1p+40);
  }
}

TEST(GramOfRoundedEntries, IsInFP64WhereAProcessorDoesNotMultiplyThem) {
  if (sums_in_single(Precision::medium)) GTEST_SKIP() << "of the operations on CPUs";
  const at::Tensor P = normal({2, 50, 21}, 1, at::kFloat), given = P.clone();
  const bool before = cpu::exchange_bfloat16_products(false);
  const at::Tensor H = gram(Matrices(P), Precision::medium);
  cpu::exchange_bfloat16_products(before);
  const at::Tensor rounded = given.to(at::kBFloat16).to(at::kDouble);
  EXPECT_TRUE(at::equal(P.to(at::kDouble), rounded));
  EXPECT_LE(relative_error(H.tril(), rounded.mT().matmul(rounded).tril()), 1e-15);
}

// TF32 keeps 10 bits of the mantissa, BF16 7.
TEST(RoundOperand, GivesTheNearestNumberOfSoManyBits) {
  for (const auto& [precision, kept] : {std::pair{Precision::high, 10}, std::pair{Precision::medium, 7}}) {
    const float unit = std::ldexp(1.0f, -kept), nan_of_low_bits = std::bit_cast<float>(0x7f800001);
    const float tiny = std::ldexp(1.0f, -149), infinity = std::numeric_limits<float>::infinity();
    const at::Tensor given = at::tensor({1 + unit, 1 + unit / 2, -1 - unit / 2, 1 + 3 * unit / 2, 1 + 0.51f * unit,
                                         2 - unit / 8, tiny, -0.0f, infinity, -infinity, nan_of_low_bits});
    const at::Tensor nearest = at::tensor(
        {1 + unit, 1.0f, -1.0f, 1 + 2 * unit, 1 + unit, 2.0f, 0.0f, -0.0f, infinity, -infinity, std::nanf("")});
    const at::Tensor P = given.clone(), expected = precision_on(at::kCPU, precision) == precision ? nearest : given;
    round_operand_(P, precision);
    EXPECT_TRUE(at::allclose(P, expected, 0, 0, /*equal_nan=*/true)) << kept << " bits: " << P;
    EXPECT_TRUE(at::equal(P.signbit(), given.signbit())) << kept;
  }
  const at::Tensor P = normal({3001}, 1, at::kFloat), before = P.clone();
  round_operand_(P, Precision::highest);
  EXPECT_TRUE(at::equal(P, before));
  round_operand_(P, Precision::medium);
  EXPECT_TRUE(at::equal(P, before.to(at::kBFloat16).to(at::kFloat)));
}

// Of 16 columns and more a CPU rounds 16 at a time.
TEST(RoundOperand, OfAGramMatrixRoundsEveryColumnAlike) {
  const float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  const at::Tensor row = at::tensor({largest, -largest, infinity, -infinity, std::bit_cast<float>(0x7f800001),
                                     0x1p-130F, 1.0F + 0x1p-8F, 1.0F + 3 * 0x1p-8F, -0.0F, 0.1F});
  const at::Tensor P = row.repeat({3, 4}).unsqueeze(0);  // 40 columns
  gram(Matrices(P), Precision::medium);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::allclose(P[0][i].slice(0, 0, 10), P[0][i].slice(0, 30), 0, 0, /*equal_nan=*/true)) << P[0][i];
  }
  if (precision_on(at::kCPU, Precision::high) == Precision::high) return;  // GPUs round the largest to infinity
  const float kept = std::numeric_limits<at::BFloat16>::max(), nan = std::nanf("");
  const at::Tensor expected = at::tensor({kept, -kept, infinity, -infinity, nan, 0x1p-130F, 1.0F, 1.0F + 0x1p-6F, -0.0F,
                                          static_cast<float>(at::BFloat16(0.1F))});
  EXPECT_TRUE(at::allclose(P[0][0].slice(0, 0, 10), expected, 0, 0, /*equal_nan=*/true)) << P[0][0];
}

}  // namespace

}  // namespace torchdion::linalg
