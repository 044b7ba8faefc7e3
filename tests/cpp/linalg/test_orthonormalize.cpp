#include "linalg/orthonormalize.h"

#include <gtest/gtest.h>

#include "comm/ranks_as_threads.h"
#include "comm/scheduler.h"
#include "linalg/backend.h"
#include "linalg/cholesky_qr.h"
#include "linalg/triangular_inverse.h"
#include "linalg/whole_factor.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

OrthonormalizeOptions options_for(Orthonormalize method, const at::Tensor& P) {
  OrthonormalizeOptions options;
  options.method = method;
  options.random = RandomMatrix::sketch(5, 2);
  options.noise = {rounding_noise(P.scalar_type(), 0)};
  return options;
}

at::Tensor by(Orthonormalize method, const at::Tensor& P) {
  const at::Tensor result = P.clone();
  comm::run(orthonormalize_(result, Axis(), 0, P.size(1), options_for(method, P)));
  return result;
}

// Every column times the sign of its product with the same column of `like`.
at::Tensor with_signs_of(const at::Tensor& P, const at::Tensor& like) {
  return P * (P * like).sum(P.dim() == 1 ? 0 : -2, true).sign();
}

std::string name_of(Orthonormalize method) {
  switch (method) {
    case Orthonormalize::rcqr:
      return "Rcqr";
    case Orthonormalize::cholesky_qr:
      return "CholeskyQr";
    case Orthonormalize::qr:
      return "Qr";
    default:
      return "Automatic";
  }
}

const auto kMethods =
    testing::Values(Orthonormalize::automatic, Orthonormalize::rcqr, Orthonormalize::cholesky_qr, Orthonormalize::qr);

class Orthonormalizing : public testing::TestWithParam<Orthonormalize> {};

TEST_P(Orthonormalizing, EqualsHouseholderQrUpToTheSignsOfColumns) {
  for (const auto& [count, m, r] : {std::tuple{1, 9, 1}, {3, 40, 10}, {2, 30, 30}, {1, 300, 64}, {1, 1, 1}}) {
    const at::Tensor P = normal({count, m, r}, 1);
    const at::Tensor expected = std::get<0>(at::linalg_qr(P)), actual = by(GetParam(), P);
    EXPECT_LE(relative_error(with_signs_of(actual, expected), expected), 1e-12) << m << "×" << r;
  }
}

TEST_P(Orthonormalizing, OfIllConditionedMatricesStaysOrthonormal) {
  for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const double condition = dtype == at::kDouble ? 1e8 : 1e4;
    const at::Tensor P = conditioned(200, 32, condition, 1).to(dtype).unsqueeze(0);
    const at::Tensor Q = by(GetParam(), P)[0];
    EXPECT_LE(orthogonality_error(Q), 64 * unit_roundoff(dtype)) << dtype;
    const at::Tensor exact = P[0].to(at::kDouble), q = Q.to(at::kDouble);
    EXPECT_LE(relative_error(q.matmul(q.mT().matmul(exact)), exact), 64 * unit_roundoff(dtype)) << dtype;
  }
}

TEST_P(Orthonormalizing, LeavesColumnsWithoutSignalExactlyZero) {
  for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    at::Tensor P = normal({2, 50, 6}, 1);
    P[0].select(1, 2).zero_();
    P[0].select(1, 4).copy_(P[0].select(1, 0) - 3 * P[0].select(1, 1));
    const at::Tensor Q = P.to(dtype);
    OrthonormalizeOptions options = options_for(GetParam(), Q);
    int64_t count = 0;
    options.counts.without_signal = &count;
    comm::run(orthonormalize_(Q, Axis(), 0, 50, options));
    EXPECT_EQ(count, 2) << dtype;
    for (int64_t dead : {2, 4}) EXPECT_EQ(Q[0].select(1, dead).count_nonzero().item<int64_t>(), 0) << dtype;
    EXPECT_LE(orthogonality_error(Q[0].index_select(1, at::tensor({0, 1, 3, 5}))), 16 * unit_roundoff(dtype)) << dtype;
    EXPECT_LE(orthogonality_error(Q[1]), 16 * unit_roundoff(dtype)) << "the other matrix of the stack, " << dtype;
  }
}

TEST_P(Orthonormalizing, KeepsAColumnThatStandsOutOfTheNoiseAndZeroesOneThatDoesNot) {
  const at::Tensor Q = orthonormal(60, 3, 1).contiguous();
  for (const auto& [stands_out, survives] : {std::pair{1e-5, true}, std::pair{1e-10, false}}) {
    at::Tensor P = Q.unsqueeze(0).clone();
    P[0].select(1, 2).copy_(Q.select(1, 0) - Q.select(1, 1) + stands_out * Q.select(1, 2));
    OrthonormalizeOptions options = options_for(GetParam(), P);
    options.noise = {1e-8};
    comm::run(orthonormalize_(P, Axis(), 0, 60, options));
    const at::Tensor expected = survives ? Q.select(1, 2) : at::zeros({60}, at::kDouble);
    const at::Tensor column = P[0].select(1, 2);
    EXPECT_LE((with_signs_of(column, Q.select(1, 2)) - expected).abs().max().item<double>(), survives ? 1e-9 : 0);
  }
}

TEST_P(Orthonormalizing, OfAWideMatrixLeavesAsManyColumnsAsItHasRows) {
  const at::Tensor Q = by(GetParam(), normal({1, 5, 8}, 1))[0];
  EXPECT_LE(orthogonality_error(Q.slice(1, 0, 5)), 1e-14);
  EXPECT_EQ(Q.slice(1, 5).count_nonzero().item<int64_t>(), 0);
}

TEST_P(Orthonormalizing, OfFP64MatricesOfAnyScaleThatHasSquaresIsTheSame) {
  const at::Tensor P = normal({2, 50, 8}, 1), expected = by(GetParam(), P);
  for (double scale : {1e-130, 1e-80, 1e80, 1e130}) {
    const at::Tensor Q = by(GetParam(), P * scale);
    EXPECT_LE(relative_error(with_signs_of(Q, expected), expected), 1e-12) << scale;
  }
}

TEST_P(Orthonormalizing, DropsAndCountsAColumnWithinTheMargin) {
  const at::Tensor Q = orthonormal(60, 3, 1).contiguous();
  at::Tensor P = Q.unsqueeze(0).clone();
  P[0].select(1, 2).copy_(Q.select(1, 0) - Q.select(1, 1) + 1e-6 * Q.select(1, 2));
  OrthonormalizeOptions options = options_for(GetParam(), P);
  int64_t without_signal = 0, in_margin = 0;
  options.noise = {.own = 1e-8, .margin = 1e4};
  options.counts = {&without_signal, &in_margin};
  comm::run(orthonormalize_(P, Axis(), 0, 60, options));
  EXPECT_EQ(P[0].select(1, 2).count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(without_signal, 1);
  EXPECT_EQ(in_margin, 1);
}

TEST_P(Orthonormalizing, CountsNoColumnOfRoundingAloneAsWithinTheMargin) {
  const at::Tensor Q = orthonormal(60, 3, 1).contiguous();
  at::Tensor P = Q.unsqueeze(0).clone();
  P[0].select(1, 2).copy_(Q.select(1, 0) - Q.select(1, 1));
  OrthonormalizeOptions options = options_for(GetParam(), P);
  int64_t without_signal = 0, in_margin = 0;
  options.noise = {.own = 1e-8, .margin = 1e4};
  options.counts = {&without_signal, &in_margin};
  comm::run(orthonormalize_(P, Axis(), 0, 60, options));
  EXPECT_EQ(without_signal, 1);
  EXPECT_EQ(in_margin, 0);
}

INSTANTIATE_TEST_SUITE_P(Methods, Orthonormalizing, kMethods, [](const auto& info) { return name_of(info.param); });

class OrthonormalizingOverAnAxis : public testing::TestWithParam<Orthonormalize> {};

TEST_P(OrthonormalizingOverAnAxis, EqualsThatOfTheWhole) {
  const at::Tensor P = normal({2, 45, 8}, 1), whole = by(GetParam(), P);
  comm::Meeting meeting(3);
  comm::on_every_rank(&meeting, [&](Axis axis) {
    const int64_t first = 15 * axis.rank;
    const at::Tensor piece = P.slice(1, first, first + 15).contiguous();
    comm::run(orthonormalize_(piece, axis, first, 45, options_for(GetParam(), P)));
    EXPECT_LE(relative_error(piece, whole.slice(1, first, first + 15)), 1e-12) << axis.rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, OrthonormalizingOverAnAxis,
                         testing::Values(Orthonormalize::automatic, Orthonormalize::rcqr, Orthonormalize::cholesky_qr),
                         [](const auto& info) { return name_of(info.param); });

// Algorithm 2: k·r elements of the sketch and r² of the Gram matrix, with k = 1.25 r, are as many as those of a sketch
// of a row less and the triangles of two Gram matrices.
TEST(Orthonormalizing, ByRcqrSendsWhatThePaperSays) {
  comm::Meeting meeting(2);
  const at::Tensor P = normal({1, 40, 8}, 1);
  comm::on_every_rank(&meeting, [&](Axis axis) {
    const int64_t first = 20 * axis.rank;
    const at::Tensor piece = P.slice(1, first, first + 20).contiguous();
    comm::run(orthonormalize_(piece, axis, first, 40, options_for(Orthonormalize::rcqr, P)));
  });
  for (const auto& log : meeting.logs) {
    EXPECT_EQ(log, (std::vector<std::string>{"all_reduce 72", "all_reduce 36", "all_reduce 36"}));
  }
}

TEST(Orthonormalizing, ByHouseholderQrIsRefusedWhereRowsAreCut) {
  comm::Meeting meeting(2);
  comm::on_every_rank(&meeting, [](Axis axis) {
    const at::Tensor P = normal({1, 4, 2}, 1);
    EXPECT_THROW(comm::run(orthonormalize_(P, axis, 0, 8, options_for(Orthonormalize::qr, P))),
                 c10::NotImplementedError);
  });
}

TEST(Orthonormalizing, ByRandomizedCholeskyQrIsAsExactWhereOperandsAreRounded) {
  for (Precision precision : {Precision::high, Precision::medium}) {
    // Near the condition where rounding would be all that is left of some columns.
    const double condition = precision == Precision::high ? 300 : 40;
    const at::Tensor hard = conditioned(150, 40, condition, 3) * std::sqrt(150 * 40);
    const double scale = precision == Precision::high ? 0x1p-110 : 1;
    const at::Tensor P = (at::stack({normal({150, 40}, 1), hard}) * scale).to(at::kFloat), exact = P.to(at::kDouble);
    OrthonormalizeOptions options = options_for(Orthonormalize::rcqr, P);
    options.precision = precision;
    options.noise.own = rounding_noise(at::kFloat, 0, precision_on(at::kCPU, precision)) / 4;
    comm::run(orthonormalize_(P, Axis(), 0, 150, options));
    const at::Tensor Q = P.to(at::kDouble);
    const double rounding = precision == Precision::high ? 0x1p-11 : 0x1p-8;
    const bool is_stored_rounded = factor_dtype(at::kCPU, at::kFloat, precision) == at::kBFloat16;
    for (int64_t i = 0; i < 2; ++i) EXPECT_LE(orthogonality_error(Q[i]), is_stored_rounded ? 2e-3 : 1e-5);
    EXPECT_LE(relative_error(Q.matmul(Q.mT().matmul(exact)), exact), 2 * rounding);
  }
}

TEST(SketchQr, InvertsTheTriangleOfTheSketchWithUnitColumns) {
  const at::Tensor SP = normal({3, 15, 12}, 1) * at::logspace(-8, 8, 12, 10, at::kDouble);
  const TriangularInverse factor = sketch_qr_inverse(SP, Noise{1e-15}, at::kDouble);
  const at::Tensor whole = whole_factor(factor);
  EXPECT_TRUE(at::equal(whole, whole.triu()));
  for (int64_t i = 0; i < 3; ++i) EXPECT_LE(orthogonality_error(SP[i].matmul(whole[i])), 1e-12) << i;
}

}  // namespace

}  // namespace torchdion::linalg
