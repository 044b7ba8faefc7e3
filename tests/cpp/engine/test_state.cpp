#include "engine/state.h"

#include <gtest/gtest.h>

#include "comm/line.h"
#include "engine/step_groups.h"
#include "linalg/backend.h"
#include "linalg/recorder.h"
#include "tensors.h"

namespace torchdion::engine {

namespace {

struct RankCase {
  int64_t m, n;
  double fraction;
  int64_t multiple, rank;
};

class RankOf : public testing::TestWithParam<RankCase> {};

TEST_P(RankOf, IsTheFractionOfTheSmallerSideRoundedUp) {
  const auto& [m, n, fraction, multiple, rank] = GetParam();
  EXPECT_EQ(rank_of(m, n, fraction, multiple), rank);
  EXPECT_EQ(rank_of(n, m, fraction, multiple), rank);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RankOf,
                         testing::Values(RankCase{100, 300, 1, 1, 100}, RankCase{100, 300, 0.25, 1, 25},
                                         RankCase{100, 300, 0.07, 1, 7}, RankCase{100, 300, 0.071, 1, 8},
                                         RankCase{100, 300, 0.07, 4, 8}, RankCase{100, 300, 0.99, 64, 100},
                                         RankCase{10, 10, 1e-9, 1, 1}, RankCase{10, 10, 0.5, INT64_MAX, 10}));

struct Start {
  const char* orientation = "right";
  double rank_fraction = 1;
  int64_t seed = 0, parameter = 0, batch_dims = 0;

  algorithms::Options options() const {
    return algorithms::options_of(kOfDion, {{"orientation", std::string_view(orientation)},
                                            {"rank_fraction", rank_fraction},
                                            {"seed", seed},
                                            {"batch_dims", batch_dims}});
  }
};

at::Tensor start_of_Q(const std::vector<int64_t>& sizes, const Start& start, at::ScalarType dtype,
                      const Layout& layout = {}) {
  return start_of(kQOfDion, sizes, {}, start.options(), start.parameter, dtype, layout);
}

TEST(StartOfQ, OfAnyPlaceDependsOnItsParameterAndPlaceInTheStackAlone) {
  const Start start{.rank_fraction = 0.5, .seed = 3, .parameter = 5};
  Start in_stack = start, other = start;
  in_stack.batch_dims = 1;
  const at::Tensor stack = start_of_Q({4, 10, 6}, in_stack, at::kDouble);
  EXPECT_EQ(stack.sizes(), (std::vector<int64_t>{4, 10, 3}));
  EXPECT_TRUE(bitwise_equal(stack[0], start_of_Q({10, 6}, start, at::kDouble)));
  EXPECT_FALSE(bitwise_equal(stack[0], stack[1]));
  other.parameter = 6;
  EXPECT_FALSE(bitwise_equal(stack[0], start_of_Q({10, 6}, other, at::kDouble)));
}

TEST(StartOfQ, HasTheShapeOfItsOrientationAndColumnsOfUnitLength) {
  const at::Tensor right = start_of_Q({500, 40}, {.rank_fraction = 0.5}, at::kDouble);
  const at::Tensor left = start_of_Q({40, 500}, {.orientation = "left", .rank_fraction = 0.5}, at::kDouble);
  EXPECT_EQ(right.sizes(), (std::vector<int64_t>{500, 20}));
  EXPECT_TRUE(bitwise_equal(right, left));
  EXPECT_NEAR(right.square().sum(0).mean().item<double>(), 1, 0.05);
}

// The second of three pieces, as torch.chunk makes them.
Axis second_of_three() {
  Axis axis;
  axis.rank = 1;
  axis.size = 3;
  axis.line = std::make_shared<comm::Line>();
  axis.line->options = {.chunks = {3}, .pieces = {0, 1, 2}};
  return axis;
}

TEST(StartOfQ, OfAPieceIsThePieceOfTheWholeInEveryDtype) {
  const std::vector<int64_t> sizes = {5, 2, 14, 11};  // a stack of stacks
  const Axis cut = second_of_three();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool is_right : {true, false}) {
      const Start start{.orientation = is_right ? "right" : "left", .seed = 3, .parameter = 5, .batch_dims = 2};
      const at::Tensor whole = start_of_Q(sizes, start, dtype);
      const auto piece = [&](const Layout& layout) { return start_of_Q(sizes, start, dtype, layout); };
      EXPECT_TRUE(bitwise_equal(piece({.batch = cut}), whole.narrow(0, 2, 2)));
      EXPECT_TRUE(bitwise_equal(piece({.rows = cut}), is_right ? whole.narrow(2, 5, 5) : whole.narrow(3, 4, 4)));
      EXPECT_TRUE(bitwise_equal(piece({.cols = cut}), is_right ? whole.narrow(3, 4, 4) : whole.narrow(2, 4, 4)));
    }
  }
}

TEST(StartOfQ, OfAStackIsOneLaunchOnTheDevice) {
  const linalg::Recorder recorder;
  start_of_Q({128, 6, 8}, {.batch_dims = 1}, at::kFloat);
  const bool is_cpu = linalg::backend_of(at::kCPU).multiplies_in_place;
  ASSERT_EQ(recorder.launches().size(), is_cpu ? 0u : 1u);
  for (const linalg::Launches& each : recorder.launches()) {
    EXPECT_EQ(each.name, "Sketch<float>");
    EXPECT_EQ(each.count, 1);
    EXPECT_EQ(each.work.bytes, 128 * 6 * 6 * 4);
  }
}

TEST(StartOfQ, OfAnEmptyParameterIsEmpty) {
  EXPECT_EQ(start_of_Q({0, 5}, {}, at::kFloat).sizes(), (std::vector<int64_t>{0, 0}));
}

TEST(StateSizes, OfAFactorFollowFormOrientationAndRankAndOthersTheParameter) {
  const auto Q = [](const Start& start, const std::vector<int64_t>& sizes) {
    return whole_state_sizes(kQOfDion, sizes, start.options());
  };
  EXPECT_EQ(Q({.rank_fraction = 0.5}, {12, 2, 5}), (std::vector<int64_t>{12, 5})) << "a convolution: 12×10";
  EXPECT_EQ(Q({.orientation = "left"}, {12, 20}), (std::vector<int64_t>{20, 12}));
  EXPECT_EQ(Q({.rank_fraction = 0.5, .batch_dims = 1}, {3, 8, 10}), (std::vector<int64_t>{3, 8, 4}));
  EXPECT_EQ(whole_state_sizes(kMomentumOfDion, {12, 2, 5}, Start().options()), (std::vector<int64_t>{12, 2, 5}));
  // A number for each row, as algorithms may keep.
  const algorithms::State rows{.name = "rows", .shape = algorithms::StateShape::rows};
  EXPECT_EQ(whole_state_sizes(rows, {3, 8, 10}, Start{.batch_dims = 1}.options()), (std::vector<int64_t>{3, 8, 1}));
  const Layout cut{.rows = second_of_three()};
  EXPECT_EQ(piece_of_state_sizes(rows, {3, 8, 10}, {3, 3, 10}, Start{.batch_dims = 1}.options(), cut),
            (std::vector<int64_t>{3, 3, 1}));
}

TEST(StartOfAMomentum, IsZeroOfTheSizesOfThePiece) {
  const at::Tensor M = start_of(kMomentumOfDion, {12, 20}, {4, 20}, Start().options(), 0, at::kBFloat16);
  EXPECT_EQ(M.sizes(), (std::vector<int64_t>{4, 20}));
  EXPECT_EQ(M.scalar_type(), at::kBFloat16);
  EXPECT_EQ(M.count_nonzero().item<int64_t>(), 0);
}

TEST(ResizedFactor, OfASmallerRankHasTheLeadingColumns) {
  const at::Tensor Q = normal({2, 9, 5}, 1);
  EXPECT_TRUE(bitwise_equal(resized_factor(kDion.states[1], Q, 3, 0, 0), Q.narrow(-1, 0, 3)));
  EXPECT_TRUE(resized_factor(kDion.states[1], Q, 3, 0, 0).is_contiguous());
}

TEST(ResizedFactor, OfALargerRankHasOrthonormalColumnsBesideTheOldOnes) {
  at::Tensor Q = normal({2, 9, 3}, 1, at::kFloat);
  Q.select(-1, 1).zero_();  // of a matrix of lower rank
  const at::Tensor larger = resized_factor(kDion.states[1], Q, 6, 4, 5);
  EXPECT_EQ(larger.scalar_type(), at::kFloat);
  EXPECT_TRUE(bitwise_equal(larger.narrow(-1, 0, 3), Q));
  const at::Tensor fresh = larger.narrow(-1, 3, 3);
  for (int64_t i = 0; i < 2; ++i) EXPECT_LE(orthogonality_error(fresh[i]), 1e-6) << "matrix " << i;
  EXPECT_LE(Q.mT().matmul(fresh).abs().max().item<double>(), 1e-5);
  EXPECT_FALSE(bitwise_equal(resized_factor(kDion.states[1], Q, 6, 4, 6), larger)) << "of another parameter";
  EXPECT_FALSE(bitwise_equal(larger[0], larger[1]));
}

}  // namespace

}  // namespace torchdion::engine
