#include "linalg/cholesky_qr.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "linalg/backend.h"
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
  const bool sums_in_single = backend_of(at::kCPU).sum_dtype(at::kFloat, precision) == at::kFloat;
  EXPECT_LE(relative_error(basis.matmul(basis.mT().matmul(exact)), exact), (sums_in_single ? 2.5 : 2) * rounding);
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

// The columns that a step of Dion keeps, with the noise of its products, whatever the condition number is. Of so many
// columns that a GPU factors them in two launches, and of square matrices, where the noise that is left is least.
using PrecisionAndSize = std::tuple<Precision, std::pair<int64_t, int64_t>>;
class CholeskyQrOfAnyCondition : public testing::TestWithParam<PrecisionAndSize> {};

TEST_P(CholeskyQrOfAnyCondition, LeavesOrthonormalColumnsAndZeroOnes) {
  const auto [precision, size] = GetParam();
  const auto [m, r] = size;
  const double allowed = precision == Precision::highest ? 1e-5 : precision == Precision::high ? 2e-3 : 1e-2;
  const Noise noise = noise_of_step(at::kFloat, m, precision_on(at::kCPU, precision), 1);
  const std::vector<double> all{1, 1e2, 1e3, 1e4, 1e6, 1e8}, of_many{1e2, 1e8};
  for (double condition : r > 500 ? of_many : all) {
    const at::Tensor P = conditioned(m, r, condition, 1).to(at::kFloat).unsqueeze(0);
    comm::run(cholesky_qr_(P, Axis(), m, {.noise = noise, .precision = precision}));
    const at::Tensor Q = P[0].to(at::kDouble), lengths = at::linalg_vector_norm(Q, 2, {0});
    const at::Tensor basis = Q.index_select(1, lengths.gt(0).nonzero().flatten());
    const at::Tensor error = basis.mT().matmul(basis) - at::eye(basis.size(1), at::kDouble);
    EXPECT_LE(at::linalg_matrix_norm(error, 2).item<double>(), allowed) << condition;
    if (condition <= 1e2) {
      EXPECT_EQ(basis.size(1), r) << condition;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CholeskyQrOfAnyCondition,
                         testing::Combine(testing::Values(Precision::highest, Precision::high, Precision::medium),
                                          testing::Values(std::pair(300, 80), std::pair(200, 200),
                                                          std::pair(560, 520))));

TEST(CholeskyQrOfRoundedP, DoesNotHideANaN) {
  for (double hostile : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const at::Tensor P = normal({1, 30, 4}, 1, at::kFloat);
    P[0][3][1] = hostile;
    comm::run(cholesky_qr_(P, Axis(), 30, {.noise = {0x1p-8}, .precision = Precision::medium}));
    EXPECT_TRUE(P[0].slice(1, 1).isnan().all().item<bool>()) << P;
  }
}

TEST(CholeskyQrOfRoundedP, TreatsColumnsOfAnyScaleAlikeAndLeavesZeroOnesZero) {
  const at::Tensor scales = at::logspace(-30, 30, 13, 10, at::kDouble);
  scales[5] = 0;
  const at::Tensor P = (normal({1, 80, 13}, 1) * scales).to(at::kFloat);
  comm::run(cholesky_qr_(P, Axis(), 80, {.noise = {0x1p-8}, .precision = Precision::medium}));
  EXPECT_EQ(P.select(2, 5).count_nonzero().item<int64_t>(), 0);
  EXPECT_LE(orthogonality_error(at::cat({P[0].slice(1, 0, 5), P[0].slice(1, 6)}, 1)), 2e-3);
}

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

// Each rank's columns may need other powers of two than the whole ones, for FP32 to hold their squares.
TEST_P(CholeskyQrOverAnAxis, IsOrthonormalWhereEachRanksRowsAreOfAnotherScale) {
  const int size = GetParam();
  for (const Precision precision : {Precision::highest, Precision::high, Precision::medium}) {
    for (const double scale : {1.0, 1e-25, 1e25}) {
      const at::Tensor P = (normal({1, 80, 12}, 1) * scale).to(at::kFloat);
      P.slice(1, 0, 8).mul_(1e-9);  // the first rank's rows
      P.select(2, 4).mul_(1e6);
      P.select(2, 7).zero_();
      comm::Meeting meeting(size);
      std::vector<at::Tensor> pieces(size);
      comm::on_every_rank(&meeting, [&](Axis axis) {
        const int64_t each = 72 / (size - 1), first = axis.rank == 0 ? 0 : 8 + (axis.rank - 1) * each;
        pieces[axis.rank] = P.slice(1, first, axis.rank == 0 ? 8 : first + each).clone();
        const Noise noise{rounding_noise(at::kFloat, 0, precision_on(at::kCPU, precision))};
        comm::run(cholesky_qr_(pieces[axis.rank], axis, 80, {.noise = noise, .precision = precision}));
      });
      const at::Tensor Q = at::cat(pieces, 1)[0].to(at::kDouble), exact = P[0].to(at::kDouble);
      EXPECT_EQ(Q.select(1, 7).abs().max().item<double>(), 0);
      const at::Tensor basis = at::cat({Q.slice(1, 0, 7), Q.slice(1, 8)}, 1);
      const double allowed = precision == Precision::medium ? 2e-3 : precision == Precision::high ? 1e-4 : 1e-6;
      EXPECT_LE(orthogonality_error(basis), allowed) << scale;
      EXPECT_LE(relative_error(basis.matmul(basis.mT().matmul(exact)), exact), 0x1p-7) << scale;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CholeskyQrOverAnAxis, testing::Values(2, 4));

}  // namespace

}  // namespace torchdion::linalg
