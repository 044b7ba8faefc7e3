#include "algorithms/table.h"

#include <gtest/gtest.h>

#include <limits>

#include "algorithms/dion_steps.h"

namespace torchdion::algorithms {

namespace {

struct Shape {
  int64_t count, m, n, r;
};

class Dion : public testing::TestWithParam<std::tuple<Orientation, Orthonormalize, Shape>> {};

TEST_P(Dion, FollowsTheTextbookInFP64) {
  const auto [orientation, method, shape] = GetParam();
  const Options options = options_of(method, {{"lr", 0.1}, {"mu", 0.9}, {"weight_decay", 0.1}, {"seed", 3}});
  const Problem p = problem(shape.count, shape.m, shape.n, shape.r, orientation, at::kDouble);
  const at::Tensor start = p.X.clone();
  Textbook textbook{p.X.clone(), p.M.clone(), p.Q.clone(), options};
  take_steps(p, textbook, orientation, options);
  EXPECT_LE(travel_error(p.X, textbook.X, start), 1e-10);
  EXPECT_LE(relative_error(p.M, textbook.M), 1e-10);
  // P and Q are unique up to the signs of their columns.
  EXPECT_LE(relative_error(p.Q * (p.Q * textbook.Q).sum(-2, true).sign(), textbook.Q), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(EveryWay, Dion,
                         testing::Combine(testing::Values(Orientation::right, Orientation::left),
                                          testing::Values(Orthonormalize::automatic, Orthonormalize::rcqr,
                                                          Orthonormalize::cholesky_qr, Orthonormalize::qr),
                                          testing::Values(Shape{1, 1, 1, 1}, Shape{1, 7, 1, 1}, Shape{3, 12, 20, 5},
                                                          Shape{2, 20, 12, 5}, Shape{1, 16, 16, 16},
                                                          Shape{2, 130, 40, 30})));

class DionDtype : public testing::TestWithParam<at::ScalarType> {};

TEST_P(DionDtype, StaysAsCloseToTheTextbookAsItsWeightsCanBeStored) {
  for (Orientation orientation : {Orientation::right, Orientation::left}) {
    const Options options = options_of(Precision::highest, {{"lr", 0.1}});
    const Problem p = problem(2, 24, 36, 8, orientation, GetParam());
    const at::Tensor start = p.X.to(at::kDouble);
    Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
    take_steps(p, textbook, orientation, options);
    EXPECT_EQ(p.X.scalar_type(), GetParam());
    EXPECT_LE(travel_error(p.X, textbook.X, start), GetParam() == at::kFloat ? 1e-4 : 50 * unit_roundoff(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DionDtype, testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Gradients whose sums FP16 does not hold: where momenta end, every product of theirs would round some entry to
// infinity.
TEST(DionStep, OfFP16MomentaBeyondTheirRangeIsFiniteAndPointsTheSameWay) {
  for (Orientation orientation : {Orientation::right, Orientation::left}) {
    for (int64_t r : {3, 12}) {
      for (Precision precision : {Precision::highest, Precision::high}) {
        const Options options = options_of(precision, {{"lr", 0.001}});
        const Problem p = problem(1, 12, 16, r, orientation, at::kHalf);
        const at::Tensor start = p.X.to(at::kDouble), G = p.gradients[0].clamp(-1, 1).mul(60000);
        Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
        for (int64_t step = 1; step <= 30; ++step) {
          take_step(p, G, orientation, step, options);
          textbook.step(G.to(at::kDouble), orientation);
        }
        EXPECT_TRUE(p.M.isfinite().all().item<bool>());
        EXPECT_GT(p.M.abs().max().item<double>(), 60000);
        const at::Tensor moved = p.X.to(at::kDouble) - start, expected = textbook.X - start;
        EXPECT_GT(((moved * expected).sum() / moved.norm() / expected.norm()).item<double>(), 0.4);
      }
    }
  }
}

// Whether tensor cores round operands or truncate them; truncation also makes every update shorter.
TEST(DionStep, OfRoundedOperandsEndsNearTheTextbook) {
  struct Case {
    Precision precision;
    double error, shorter;
  };
  for (const Case& c : {Case{Precision::high, 4e-3, 0x1p-10}, Case{Precision::medium, 1.2e-2, 0x1p-7}}) {
    for (int form = 0; form < 8; ++form) {
      const Orientation orientation = form & 4 ? Orientation::left : Orientation::right;
      const at::ScalarType momentum = form == 7 ? at::kBFloat16 : at::kFloat;
      const Options options = options_of(
          c.precision,
          {{"lr", 0.1}, {"weight_decay", 0.0}, {"nesterov", (form & 1) != 0}, {"error_feedback", (form & 2) == 0}});
      Problem p = problem(1, 24, 96, 6, orientation, at::kFloat);
      p.M = p.M.to(momentum);
      const at::Tensor start = p.X.to(at::kDouble);
      Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
      take_steps(p, textbook, orientation, options);
      const double error = momentum == at::kBFloat16 ? std::max(c.error, 1.2e-2) : c.error;
      EXPECT_LE(travel_error(p.X, textbook.X, start), error) << form;
      EXPECT_LE(relative_error(p.M, textbook.M), error) << form;
      const at::Tensor Q = p.Q.to(at::kDouble), signs = (Q * textbook.Q).sum(-2, /*keepdim=*/true).sign();
      EXPECT_LE(relative_error(Q * signs, textbook.Q), 3 * error) << form;
      const at::Tensor moved = p.X.to(at::kDouble) - start, expected = textbook.X - start;
      EXPECT_NEAR(((moved * expected).sum() / expected.square().sum()).item<double>(), 1, c.shorter) << form;
    }
  }
}

// What products read has room beside P and R also where a rank has fewer rows than r.
TEST(DionStep, OfCutRowsEndsWhereThatOfWholeOnesDoes) {
  constexpr int ranks = 4;
  constexpr int64_t m = 16, n = 24, r = 12, own = m / ranks;
  for (const Precision precision : {Precision::high, Precision::medium}) {
    for (const bool nesterov : {false, true}) {
      const Options options = options_of(precision, {{"lr", 0.1}, {"weight_decay", 0.0}, {"nesterov", nesterov}});
      const Problem whole = problem(2, m, n, r, Orientation::left, at::kFloat);
      const at::Tensor start = whole.X.clone(), first_Q = whole.Q.clone();
      for (int64_t step = 0; step < 3; ++step) {
        take_step(whole, whole.gradients[step], Orientation::left, step + 1, options);
      }
      std::vector<at::Tensor> X(ranks), Q(ranks);
      comm::Meeting meeting(ranks);
      comm::on_every_rank(&meeting, [&](Axis axis) {
        const auto piece_of = [&](const at::Tensor& each) {
          return each.slice(1, axis.rank * own, (axis.rank + 1) * own).contiguous();
        };
        const Piece columns = axis.piece(r);
        const at::Tensor own_Q = first_Q.narrow(2, columns.begin, columns.size).contiguous();
        const Problem piece{piece_of(start), at::zeros({2, own, n}), own_Q, {}};
        for (int64_t step = 0; step < 3; ++step) {
          const at::Tensor G = piece_of(whole.gradients[step]);
          Batch batch = batch_of(piece, G, Orientation::left, step + 1, options);
          batch.layout.rows = axis;
          batch.shape.m = m;
          batch.shape.ranks = {r};
          batch.shape.owners = {};
          batch.factors.shape_factor = std::sqrt(static_cast<double>(m) / static_cast<double>(n));
          batch.workspace = at::empty({kDion.cost(batch.shape, batch.layout, options).workspace}, at::kFloat);
          comm::run(update(kDion, batch, options));
        }
        X[axis.rank] = piece.X;
        Q[axis.rank] = piece.Q;
      });
      const double allowed = precision == Precision::medium ? 3e-2 : 4e-3;
      EXPECT_LE(travel_error(at::cat(X, 1), whole.X, start), allowed) << nesterov;
      EXPECT_LE(relative_error(at::cat(Q, 2), whole.Q), allowed) << nesterov;
    }
  }
}

// Also with rounded operands a short column is signal as long as it is longer than what they lose.
TEST(DionStep, KeepsTheColumnsOfADecayingSpectrumAtEveryPrecision) {
  struct Case {
    Precision precision;
    double condition, least_cosine;
  };
  for (const Case& c :
       {Case{Precision::highest, 1e3, 0.9999}, Case{Precision::high, 30, 0.999}, Case{Precision::medium, 4, 0.98}}) {
    const Options options = options_of(c.precision, {{"lr", 0.1}});
    Problem p = problem(1, 48, 32, 32, Orientation::left, at::kFloat);
    p.Q = orthonormal(32, 32, 3).unsqueeze(0).to(at::kFloat);
    const at::Tensor start = p.X.to(at::kDouble), G = conditioned(48, 32, c.condition, 4).unsqueeze(0).to(at::kFloat);
    Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
    Batch batch = batch_of(p, G, Orientation::left, 1, options);
    int64_t without_signal = 0;
    batch.counts.without_signal = &without_signal;
    comm::run(update(kDion, batch, options));
    textbook.step(G, Orientation::left);
    EXPECT_EQ(without_signal, 0);
    const at::Tensor moved = p.X.to(at::kDouble) - start, expected = textbook.X - start;
    EXPECT_GT(((moved * expected).sum() / moved.norm() / expected.norm()).item<double>(), c.least_cosine);
  }
}

TEST(DionStep, IsTheSameForGradientsOfAnyScale) {
  const Options options = options_of(kDion, {{"lr", 0.1}});
  for (double scale : {0x1p-90, 0x1p40}) {
    const Problem p = problem(1, 12, 20, 5, Orientation::right, at::kFloat);
    const Problem scaled = problem(1, 12, 20, 5, Orientation::right, at::kFloat);
    for (int64_t step = 1; step <= 3; ++step) {
      take_step(p, p.gradients[step], Orientation::right, step, options);
      take_step(scaled, scaled.gradients[step] * scale, Orientation::right, step, options);
    }
    EXPECT_TRUE(bitwise_equal(scaled.X, p.X)) << scale;
    EXPECT_TRUE(bitwise_equal(scaled.M, p.M * scale)) << scale;
  }
}

TEST(DionStep, WithoutGradientAndMomentumOnlyDecaysTheWeights) {
  for (Orthonormalize method :
       {Orthonormalize::automatic, Orthonormalize::rcqr, Orthonormalize::cholesky_qr, Orthonormalize::qr}) {
    const Options options = options_of(method, {{"lr", 0.5}, {"weight_decay", 0.25}});
    const Problem p = problem(2, 12, 20, 5, Orientation::left, at::kFloat);
    const at::Tensor X = p.X.clone(), Q = p.Q.clone();
    take_step(p, at::zeros_like(p.X), Orientation::left, 1, options);
    EXPECT_TRUE(bitwise_equal(p.X, X * 0.875f));
    EXPECT_TRUE(bitwise_equal(p.Q, Q));
    EXPECT_EQ(p.M.count_nonzero().item<int64_t>(), 0);
  }
}

TEST(DionStep, OfALowRankGradientIsFiniteAndStaysInItsSpan) {
  const Options options = options_of(kDion, {{"lr", 1.0}, {"weight_decay", 0.0}});
  const Problem p = problem(1, 30, 20, 10, Orientation::left, at::kDouble);
  const at::Tensor start = p.X.clone(), basis = orthonormal(30, 3, 5);
  const at::Tensor G = basis.matmul(normal({3, 20}, 6)).unsqueeze(0);
  for (int64_t step = 1; step <= 4; ++step) take_step(p, G, Orientation::left, step, options);
  const at::Tensor travelled = (p.X - start)[0];
  EXPECT_TRUE(p.X.isfinite().all().item<bool>());
  EXPECT_LE(relative_error(basis.matmul(basis.mT()).matmul(travelled), travelled), 1e-12);
  EXPECT_TRUE(p.Q.isfinite().all().item<bool>());
}

TEST(DionStep, MaximizesByTakingTheGradientWithTheOtherSign) {
  const Problem up = problem(1, 12, 20, 5, Orientation::right, at::kFloat);
  const Problem down = problem(1, 12, 20, 5, Orientation::right, at::kFloat);
  for (int64_t step = 1; step <= 3; ++step) {
    take_step(up, up.gradients[step], Orientation::right, step, options_of(kDion, {{"maximize", true}}));
    take_step(down, -down.gradients[step], Orientation::right, step, options_of(kDion, {}));
  }
  EXPECT_TRUE(bitwise_equal(up.X, down.X));
}

TEST(DionStep, TakesTheGradientTimesItsFactorIntoAccount) {
  for (bool maximize : {false, true}) {
    const Options options = options_of(kDion, {{"maximize", maximize}});
    const Problem p = problem(1, 12, 20, 5, Orientation::right, at::kFloat);
    const Problem scaled = problem(1, 12, 20, 5, Orientation::right, at::kFloat);
    for (int64_t step = 1; step <= 3; ++step) {
      take_step(p, p.gradients[step], Orientation::right, step, options);
      const at::Tensor G = scaled.gradients[step] * 65'536;
      Batch batch = batch_of(scaled, G, Orientation::right, step, options);
      batch.gradients.factor = 1.0 / 65'536;
      comm::run(update(kDion, batch, options));
    }
    EXPECT_TRUE(bitwise_equal(scaled.X, p.X));
    EXPECT_TRUE(bitwise_equal(scaled.M, p.M));
  }
}

// Each takes the host some microseconds, more than small matrices take the GPU.
TEST(DionStep, TakesSixteenLaunchesForAnyNumberOfMatricesAndFourForEveryFurther512Columns) {
  if (linalg::backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  for (const Precision precision : {Precision::high, Precision::medium}) {
    EXPECT_EQ(launches_of_step(1, 80, 64, precision), 16);
    EXPECT_EQ(launches_of_step(1, 200, 192, precision), 16);  // a GPT of 120M at r = d/4
    EXPECT_EQ(launches_of_step(12, 80, 70, precision), 16);
    EXPECT_EQ(launches_of_step(1, 520, 515, precision), 20);
  }
}

TEST(DionStep, CountsNonfiniteEntriesAsZeroWhenAsked) {
  const Problem p = problem(2, 12, 20, 5, Orientation::right, at::kFloat);
  const Problem reference = problem(2, 12, 20, 5, Orientation::right, at::kFloat);
  at::Tensor G = p.gradients[0].clone();
  G[0][3][4] = std::numeric_limits<double>::infinity();
  G[1][11][19] = std::numeric_limits<double>::quiet_NaN();
  int64_t zeroed = 0;
  const Options options = options_of(kDion, {});
  Batch batch = batch_of(p, G, Orientation::right, 1, options);
  batch.gradients.zeroed = &zeroed;
  comm::run(update(kDion, batch, options));
  take_step(reference, G.nan_to_num(0, 0, 0), Orientation::right, 1, options);
  EXPECT_EQ(zeroed, 2);
  EXPECT_TRUE(bitwise_equal(p.X, reference.X));
}

TEST(DionStep, LetsANaNReachTheWeightsOfItsMatrixAlone) {
  const Problem p = problem(2, 12, 20, 5, Orientation::right, at::kFloat);
  p.gradients[0][1][3][4] = std::numeric_limits<double>::quiet_NaN();
  take_step(p, p.gradients[0], Orientation::right, 1, options_of(kDion, {}));
  EXPECT_TRUE(p.X[0].isfinite().all().item<bool>());
  EXPECT_TRUE(p.X[1].isnan().any().item<bool>());
}

}  // namespace

}  // namespace torchdion::algorithms
