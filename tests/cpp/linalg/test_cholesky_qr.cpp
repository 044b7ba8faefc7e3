#include "linalg/cholesky_qr.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "linalg/backend.h"
#include "linalg/whole_factor.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

// The rows of P cut among ranks: those of rank `rank` of `size`, uneven, and none on the last but one of four.
at::Tensor rows_of_rank(const at::Tensor& P, int rank, int size) {
  const std::vector<double> cuts =
      size == 4 ? std::vector<double>{0, 0.3, 0.5, 0.5, 1} : std::vector<double>{0, 0.4, 1};
  const auto row = [&](int cut) { return static_cast<int64_t>(cuts[cut] * static_cast<double>(P.size(1))); };
  return P.slice(1, row(rank), row(rank + 1)).contiguous();
}

at::Tensor orthonormalized(const at::Tensor& matrix) {
  const at::Tensor P = matrix.dim() == 2 ? matrix.unsqueeze(0).clone() : matrix.clone();
  comm::run(cholesky_qr_(P, Axis(), P.size(1), {.noise = {rounding_noise(P.scalar_type(), 0)}}));
  return P.view(matrix.sizes());
}

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

class GramPrecision : public testing::TestWithParam<Precision> {};

TEST_P(GramPrecision, IsThatOfPWithTheEntriesThatItLeavesInPlace) {
  CholeskyPass pass{.rows = 50, .precision = GetParam(), .given = Noise{}};
  const at::Tensor P = normal({2, 50, 9}, 1, at::kFloat), H = gram(Matrices(P), pass), exact = P.to(at::kDouble);
  EXPECT_LE(relative_error(H.tril(), exact.mT().matmul(exact).tril()), 1e-15);
}

INSTANTIATE_TEST_SUITE_P(Precisions, GramPrecision,
                         testing::Values(Precision::highest, Precision::high, Precision::medium));

// TF32 keeps 10 bits of the mantissa, BF16 7.
TEST(RoundOperand, GivesTheNearestNumberOfSoManyBits) {
  for (const auto& [precision, kept] : {std::pair{Precision::high, 10}, std::pair{Precision::medium, 7}}) {
    const float unit = std::ldexp(1.0f, -kept), nan_of_low_bits = std::bit_cast<float>(0x7f800001);
    const float tiny = std::ldexp(1.0f, -149), infinity = std::numeric_limits<float>::infinity();
    const at::Tensor given = at::tensor({1 + unit, 1 + unit / 2, -1 - unit / 2, 1 + 3 * unit / 2, 1 + 0.51f * unit,
                                         2 - unit / 8, tiny, -0.0f, infinity, -infinity, nan_of_low_bits});
    const at::Tensor nearest = at::tensor(
        {1 + unit, 1.0f, -1.0f, 1 + 2 * unit, 1 + unit, 2.0f, 0.0f, -0.0f, infinity, -infinity, std::nanf("")});
    const at::Tensor P = given.clone(), expected = backend_of(at::kCPU).rounds_operands ? nearest : given;
    round_operand_(P, precision);
    EXPECT_TRUE(at::allclose(P, expected, 0, 0, /*equal_nan=*/true)) << kept << " bits: " << P;
    EXPECT_TRUE(at::equal(P.signbit(), given.signbit())) << kept;
  }
  const at::Tensor P = normal({3001}, 1, at::kFloat), before = P.clone();
  round_operand_(P, Precision::highest);
  EXPECT_TRUE(at::equal(P, before));
  round_operand_(P, Precision::medium);
  EXPECT_TRUE(at::equal(P, backend_of(at::kCPU).rounds_operands ? before.to(at::kBFloat16).to(at::kFloat) : before));
}

class MultiplyTriangular : public testing::TestWithParam<GramSize> {};

TEST_P(MultiplyTriangular, EqualsTheProductOfPTheScalesAndTheTriangle) {
  const auto [count, m, r] = GetParam();
  for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor scale = normal({count, r}, 1), inverse = normal({count, r, r}, 2, dtype).triu();
    const at::Tensor P = normal({count, m, r}, 3, dtype);
    const at::Tensor scaled = P.to(at::kDouble) * scale.unsqueeze(1), triangle = inverse.to(at::kDouble);
    if (backend_of(at::kCPU).multiplies_in_place) {
      multiply_triangular_(Matrices(P), Matrices(P), {scale, inverse});
    } else {
      multiply_triangular_(Matrices(P), Matrices(P.clone()), {{}, (scale.unsqueeze(2) * triangle).to(dtype)});
    }
    const at::Tensor magnitude = scaled.abs().matmul(triangle.abs());
    const double rounding = unit_roundoff(dtype) * static_cast<double>(r + 4) * 2;
    EXPECT_TRUE((P.to(at::kDouble) - scaled.matmul(triangle)).abs().le(magnitude * rounding).all().item<bool>())
        << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, MultiplyTriangular, kGramSizes);

class CholeskyInverse : public testing::TestWithParam<int64_t> {};

TEST_P(CholeskyInverse, InvertsTheFactorThatLapackFinds) {
  const int64_t r = GetParam(), m = 3 * r, count = 2;
  const at::Tensor scales = at::logspace(-12, 12, r, 10, at::kDouble);
  const at::Tensor P = normal({count, m, r}, 1) * scales;
  const at::Tensor H = P.mT().matmul(P).contiguous();
  CholeskyPass pass{.rows = m, .dtype = at::kDouble, .given = Noise{.own = 1e-9}};
  const TriangularInverse factor = cholesky_inverse(H.clone(), pass);

  const at::Tensor norms = H.diagonal(0, -2, -1).sqrt();
  const at::Tensor inverse = norms.unsqueeze(2) * whole_factor(factor);
  EXPECT_TRUE(at::equal(inverse, inverse.triu()));
  const at::Tensor unit = H / norms.unsqueeze(1) / norms.unsqueeze(2);
  const at::Tensor R = at::linalg_cholesky(unit).mT();
  EXPECT_LE(relative_error(inverse, at::linalg_inv(R)), 1e-12);
  // An orthonormal column is made of unit columns, whose noise adds up as independent errors do.
  const at::Tensor amplification = at::linalg_vector_norm(inverse, 2, {1});
  EXPECT_LE(relative_error(pass.noise, 1e-9 * amplification), 1e-12);
  for (std::size_t i = 0; i < factor.amplification.size(); ++i) {
    EXPECT_NEAR(factor.amplification[i], amplification[static_cast<int64_t>(i)].max().item<double>(), 1e-12);
  }
}

TEST_P(CholeskyInverse, WeightsTheNoiseOfEveryColumnWithItsShareInTheOrthonormalOnes) {
  const int64_t r = GetParam(), m = 3 * r;
  const at::Tensor spread = at::logspace(-3, 3, r, 10, at::kDouble);
  const at::Tensor P = normal({2, m, r}, 1) * at::stack({spread, spread.flip(0).sqrt()}).unsqueeze(1);
  const at::Tensor H = P.mT().matmul(P).contiguous(), norms = H.diagonal(0, -2, -1).sqrt();
  const Noise given{.own = 1e-9, .mean = 1e-8};
  CholeskyPass pass{.rows = m, .dtype = at::kDouble, .given = given};
  const at::Tensor inverse = norms.unsqueeze(2) * whole_factor(cholesky_inverse(H.clone(), pass));
  const at::Tensor shares = inverse * relative_noise(norms, given).unsqueeze(2);
  EXPECT_LE((pass.noise / at::linalg_vector_norm(shares, 2, {1}) - 1).abs().max().item<double>(), 1e-9);
}

// The columns are factored 32 at a time on the CPU, 64 on a GPU.
INSTANTIATE_TEST_SUITE_P(Sizes, CholeskyInverse, testing::Values(1, 2, 3, 32, 33, 60, 64, 65, 131));

TEST(CholeskyInverse, OfOrthogonalColumnsHasTheNoiseOfTheirLengthsAndNoneThatIsAllNoise) {
  const Noise noise{.own = 1e-7, .mean = 1e-5};
  for (int64_t r : {1, 7, 129, 257}) {
    const at::Tensor spread = at::logspace(-9, 9, r, 10, at::kDouble);
    const at::Tensor lengths = at::stack({spread, spread.flip(0), at::ones({r}, at::kDouble)});
    if (r > 1) lengths.select(1, r / 2).zero_();
    CholeskyPass pass{.rows = r, .dtype = at::kDouble, .given = noise};
    const at::Tensor factor = whole_factor(cholesky_inverse(at::diag_embed(lengths.square()), pass));
    const at::Tensor expected = relative_noise(lengths, noise), alive = expected.lt(1);
    EXPECT_LE(relative_error(pass.noise.masked_select(alive), expected.masked_select(alive)), 1e-12) << r;
    EXPECT_TRUE(pass.noise.masked_select(alive.logical_not()).ge(1).all().item<bool>()) << r;
    EXPECT_LE(relative_error(factor, at::diag_embed(alive / lengths.masked_fill(alive.logical_not(), 1))), 1e-15) << r;
  }
}

// But for a common power of two.
TEST(CholeskyInverse, HoldsTheFactorOfColumnsWhoseLengthsAreFarApart) {
  for (double square : {0x1p-298, 0x1p-250, 0x1p-90, 0x1p+90, 0x1p+250}) {
    const at::Tensor H = at::diag_embed(at::tensor({1.0, square, 4.0})).unsqueeze(0);
    CholeskyPass pass{.rows = 9, .dtype = at::kFloat, .given = Noise{}};
    const at::Tensor factor = whole_factor(cholesky_inverse(H, pass));
    EXPECT_TRUE(factor.isfinite().all().item<bool>()) << square;
    const double common = factor[0][0][0].item<double>();
    EXPECT_EQ(std::log2(common), std::round(std::log2(common))) << square;
    EXPECT_TRUE(at::equal(factor[0].diagonal(), common * at::tensor({1.0, 1 / std::sqrt(square), 0.5}))) << square;
  }
}

// Its pivot is rounding alone, but it is not said to be noise: later passes will see it clearly.
TEST(CholeskyInverse, KeepsAColumnThatRoundingHidesOutOfThoseAfterIt) {
  for (int64_t hidden : {5, 63, 64, 70}) {
    const at::Tensor P = normal({1, 200, 140}, 1);
    P[0].select(1, hidden).mul_(1e-9).add_(P[0].select(1, 4));
    const at::Tensor H = P.mT().matmul(P).contiguous();
    int64_t without_signal = 0;
    CholeskyPass pass{.rows = 200, .dtype = at::kDouble, .given = Noise{.own = 1e-16}, .counts = {&without_signal}};
    const at::Tensor row = whole_factor(cholesky_inverse(H, pass))[0][hidden];
    EXPECT_GT(row[hidden].item<double>(), 0) << hidden;
    EXPECT_EQ(without_signal, 0) << hidden;
    EXPECT_EQ(row.slice(0, hidden + 1).count_nonzero().item<int64_t>(), 0) << hidden;
  }
}

struct Condition {
  at::ScalarType dtype;
  int64_t m, r;
  double condition;
};

void PrintTo(const Condition& c, std::ostream* out) {
  *out << c.dtype << " " << c.m << "×" << c.r << ", condition " << c.condition;
}

class CholeskyQr : public testing::TestWithParam<Condition> {};

TEST_P(CholeskyQr, GivesOrthonormalColumnsThatSpanThoseOfPInTheirOrder) {
  const auto [dtype, m, r, condition] = GetParam();
  const at::Tensor P = conditioned(m, r, condition, 1).to(dtype);
  const at::Tensor Q = orthonormalized(P).to(at::kDouble), exact = P.to(at::kDouble);
  EXPECT_LE(orthogonality_error(Q), unit_roundoff(dtype) * (8 + std::sqrt(static_cast<double>(m))));
  const at::Tensor R = Q.mT().matmul(exact);
  EXPECT_LE(relative_error(Q.matmul(R), exact), 4 * unit_roundoff(dtype) * std::sqrt(static_cast<double>(r)));
  const double triangle = at::linalg_vector_norm(R.tril(-1)).item<double>() / at::linalg_vector_norm(R).item<double>();
  EXPECT_LE(triangle, 4 * unit_roundoff(dtype) * std::sqrt(static_cast<double>(r)));
  EXPECT_TRUE(R.diagonal().gt(0).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Conditions, CholeskyQr,
                         testing::Values(Condition{at::kDouble, 50, 1, 1}, Condition{at::kDouble, 64, 16, 1e1},
                                         Condition{at::kDouble, 300, 40, 1e4}, Condition{at::kDouble, 300, 100, 1e7},
                                         Condition{at::kDouble, 200, 30, 1e9}, Condition{at::kDouble, 40, 40, 1e3},
                                         Condition{at::kFloat, 50, 1, 1}, Condition{at::kFloat, 64, 16, 1e1},
                                         Condition{at::kFloat, 300, 100, 1e3}, Condition{at::kFloat, 500, 20, 1e5},
                                         Condition{at::kFloat, 40, 40, 1e3}));

// GPUs may round P before they read it, to `rounding`. Columns that this leaves no signal in become zero.
struct Rounded {
  Precision precision;
  double rounding, condition, scale = 1;
};

class CholeskyQrPrecision : public testing::TestWithParam<Rounded> {};

TEST_P(CholeskyQrPrecision, GivesOrthonormalColumnsThatSpanThoseOfTheRoundedP) {
  const auto [precision, rounding, condition, scale] = GetParam();
  const at::Tensor given = (conditioned(300, 100, condition, 1) * scale).to(at::kFloat), P = given.unsqueeze(0).clone();
  const Noise noise{rounding_noise(at::kFloat, 0, precision_on(at::kCPU, precision))};
  comm::run(cholesky_qr_(P, Axis(), 300, {.noise = noise, .precision = precision}));
  const at::Tensor Q = P[0].to(at::kDouble), exact = given.to(at::kDouble);
  const at::Tensor lengths = at::linalg_vector_norm(Q, 2, {0}), alive = lengths.gt(0).nonzero().flatten();
  const at::Tensor basis = Q.index_select(1, alive);
  EXPECT_LE(orthogonality_error(basis), precision_on(at::kCPU, precision) == Precision::highest ? 1e-5 : 2e-3);
  EXPECT_LE(relative_error(basis.matmul(basis.mT().matmul(exact)), exact), 2 * rounding);
  // As many columns as rounding leaves independent.
  const double largest = 0.5 / rounding;
  EXPECT_GE(alive.numel(), condition < largest ? 100 : 20);
}

INSTANTIATE_TEST_SUITE_P(Rounding, CholeskyQrPrecision,
                         testing::Values(Rounded{Precision::highest, 0x1p-22, 1},
                                         Rounded{Precision::highest, 0x1p-22, 1e4},
                                         Rounded{Precision::high, 0x1p-11, 1}, Rounded{Precision::high, 0x1p-11, 1e2},
                                         Rounded{Precision::high, 0x1p-11, 1e5}, Rounded{Precision::high, 0x1p-11, 1e8},
                                         Rounded{Precision::high, 0x1p-11, 1e5, 0x1p-105},
                                         Rounded{Precision::medium, 0x1p-8, 1},
                                         Rounded{Precision::medium, 0x1p-8, 1e4}));

class CholeskyQrDtype : public testing::TestWithParam<at::ScalarType> {};

TEST_P(CholeskyQrDtype, TreatsColumnsOfAnyScaleAlike) {
  const at::Tensor P = normal({80, 13}, 1), scales = at::logspace(-30, 30, 13, 10, at::kDouble);
  const at::Tensor Q = orthonormalized((P * scales).to(GetParam()));
  EXPECT_LE(orthogonality_error(Q), 8 * unit_roundoff(GetParam()));
  EXPECT_LE(relative_error(Q, orthonormalized(P)), 20 * unit_roundoff(GetParam()));
}

TEST_P(CholeskyQrDtype, ColumnsWithoutSignalBecomeZeroAndDoNotDisturbTheOthers) {
  const at::Tensor signal = normal({60, 5}, 1);
  const at::Tensor P = at::zeros({60, 9}, at::kDouble);
  const std::vector<int64_t> carrying = {1, 2, 4, 6, 8};
  for (std::size_t i = 0; i < carrying.size(); ++i) P.select(1, carrying[i]).copy_(signal.select(1, i));
  P.select(1, 3).copy_(2 * P.select(1, 1) - P.select(1, 2));
  P.select(1, 5).copy_(1e-20 * P.select(1, 4));
  P.select(1, 7).copy_(P.select(1, 6) + P.select(1, 3));
  const at::Tensor Q = orthonormalized(P.to(GetParam()));
  for (int64_t dead : {0, 3, 5, 7}) {
    EXPECT_EQ(Q.select(1, dead).count_nonzero().item<int64_t>(), 0) << dead;
  }
  const at::Tensor alive = Q.index_select(1, at::tensor(carrying));
  EXPECT_LE(orthogonality_error(alive), 8 * unit_roundoff(GetParam()));
  EXPECT_LE(relative_error(alive, orthonormalized(signal)), 40 * unit_roundoff(GetParam()));
}

TEST_P(CholeskyQrDtype, OfAWideMatrixLeavesAsManyColumnsAsItHasRows) {
  const at::Tensor P = normal({7, 12}, 1, GetParam()), Q = orthonormalized(P);
  EXPECT_LE(orthogonality_error(Q.slice(1, 0, 7)), 16 * unit_roundoff(GetParam()));
  EXPECT_EQ(Q.slice(1, 7).count_nonzero().item<int64_t>(), 0);
}

TEST_P(CholeskyQrDtype, OfZeroIsZero) {
  EXPECT_EQ(orthonormalized(at::zeros({9, 4}, GetParam())).count_nonzero().item<int64_t>(), 0);
}

TEST_P(CholeskyQrDtype, DoesNotHideANaN) {
  at::Tensor P = normal({30, 4}, 1, GetParam());
  P[3][1] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor Q = orthonormalized(P);
  EXPECT_TRUE(Q.slice(1, 1).isnan().all().item<bool>());
}

TEST_P(CholeskyQrDtype, TreatsEveryMatrixOfAStackByItself) {
  const at::Tensor stack = at::stack({conditioned(90, 20, 1e1, 1), at::zeros({90, 20}, at::kDouble),
                                      conditioned(90, 20, 1e4, 3), normal({90, 20}, 4)})
                               .to(GetParam());
  const at::Tensor Q = orthonormalized(stack);
  for (int64_t i = 0; i < stack.size(0); ++i) {
    EXPECT_LE((Q[i] - orthonormalized(stack[i])).abs().max().item<double>(), 8 * unit_roundoff(GetParam())) << i;
  }
}

TEST_P(CholeskyQrDtype, CountsTheColumnsWithoutSignalOnce) {
  at::Tensor P = normal({3, 180, 140}, 1, GetParam());
  for (int64_t zero : {0, 90}) P[0].select(1, zero).zero_();
  for (int64_t copy : {2, 63, 64, 139}) P[0].select(1, copy).copy_(P[0].select(1, 1));
  P[2].select(1, 70).copy_(P[2].select(1, 3) + 2 * P[2].select(1, 65));
  int64_t count = 10;
  const Noise noise{rounding_noise(GetParam(), 0)};
  comm::run(cholesky_qr_(P, Axis(), 180, {.noise = noise, .counts = {&count}}));
  EXPECT_EQ(count, 10 + 6 + 1);
}

// A CPU keeps the short one too.
TEST(CholeskyQr, LosesTheShorterOfTwoColumnsWhereFP32HoldsNoFactorOfBoth) {
  at::Tensor P = at::zeros({4, 2}, at::kFloat);
  P[0][0] = 1e34f;
  P[1][1] = 1e-42f;
  const at::Tensor Q = orthonormalized(P);
  EXPECT_NEAR(Q[0][0].item<float>(), 1, 1e-6);
  EXPECT_EQ(Q[1][1].item<float>() > 0.9, backend_of(at::kCPU).multiplies_in_place);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CholeskyQrDtype, testing::Values(at::kDouble, at::kFloat),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

class CholeskyQrOverAnAxis : public testing::TestWithParam<int> {};

TEST_P(CholeskyQrOverAnAxis, EqualsThatOfTheWholeOnEveryRank) {
  const int size = GetParam();
  const at::Tensor P = at::stack({conditioned(70, 12, 1e3, 1), normal({70, 12}, 2)});
  P[1].select(1, 5).copy_(P[1].select(1, 4));
  const at::Tensor whole = orthonormalized(P);
  comm::Meeting meeting(size);
  comm::on_every_rank(&meeting, [&](Axis axis) {
    const at::Tensor piece = rows_of_rank(P, axis.rank, axis.size);
    int64_t without_signal = 0;
    const Noise noise{rounding_noise(at::kDouble, 0)};
    comm::run(cholesky_qr_(piece, axis, 70, {.noise = noise, .counts = {&without_signal}}));
    EXPECT_EQ(without_signal, 1) << axis.rank;
    EXPECT_LE((piece - rows_of_rank(whole, axis.rank, axis.size)).abs().sum().item<double>(), 1e-10) << axis.rank;
  });
  const std::vector<std::string> expected(passes_over_axis(at::kDouble), "all_reduce " + std::to_string(12 * 13));
  for (const auto& log : meeting.logs) EXPECT_EQ(log, expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CholeskyQrOverAnAxis, testing::Values(2, 4));

}  // namespace

}  // namespace torchdion::linalg
