#include "engine/state.h"

#include <gtest/gtest.h>

#include "comm/line.h"
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

TEST(StartOfQ, OfAnyPlaceDependsOnItsParameterAndPlaceInTheStackAlone) {
  const QStart start{.rank_fraction = 0.5, .seed = 3, .parameter = 5};
  const at::Tensor stack = start_of_Q({4, 10, 6}, {.batch_dims = 1}, start, at::kDouble);
  EXPECT_EQ(stack.sizes(), (std::vector<int64_t>{4, 10, 3}));
  EXPECT_TRUE(bitwise_equal(stack[0], start_of_Q({10, 6}, {}, start, at::kDouble)));
  EXPECT_FALSE(bitwise_equal(stack[0], stack[1]));
  QStart other = start;
  other.parameter = 6;
  EXPECT_FALSE(bitwise_equal(stack[0], start_of_Q({10, 6}, {}, other, at::kDouble)));
}

TEST(StartOfQ, HasTheShapeOfItsOrientationAndColumnsOfUnitLength) {
  const at::Tensor right = start_of_Q({500, 40}, {}, {.rank_fraction = 0.5}, at::kDouble);
  const at::Tensor left =
      start_of_Q({40, 500}, {}, {.orientation = Orientation::left, .rank_fraction = 0.5}, at::kDouble);
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
  axis.line->options = {.chunks = {3}, .places = {0, 1, 2}};
  return axis;
}

TEST(StartOfQ, OfAPieceIsThePieceOfTheWholeInEveryDtype) {
  const std::vector<int64_t> sizes = {5, 2, 14, 11};  // a stack of stacks
  const Axis cut = second_of_three();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Orientation orientation : {Orientation::right, Orientation::left}) {
      const QStart start{.orientation = orientation, .seed = 3, .parameter = 5};
      const at::Tensor whole = start_of_Q(sizes, {.batch_dims = 2}, start, dtype);
      const auto piece = [&](const Layout& layout) {
        return start_of_Q(sizes, {.batch_dims = 2}, start, dtype, layout);
      };
      EXPECT_TRUE(bitwise_equal(piece({.batch = cut}), whole.narrow(0, 2, 2)));
      const bool is_right = orientation == Orientation::right;
      EXPECT_TRUE(bitwise_equal(piece({.rows = cut}), is_right ? whole.narrow(2, 5, 5) : whole.narrow(3, 4, 4)));
      EXPECT_TRUE(bitwise_equal(piece({.cols = cut}), is_right ? whole.narrow(3, 4, 4) : whole.narrow(2, 4, 4)));
    }
  }
}

TEST(StartOfQ, OfAStackIsOneLaunchOnTheDevice) {
  const linalg::Recorder recorder;
  start_of_Q({128, 6, 8}, {.batch_dims = 1}, {}, at::kFloat);
  const bool is_cpu = linalg::backend_of(at::kCPU).multiplies_in_place;
  ASSERT_EQ(recorder.launches().size(), is_cpu ? 0u : 1u);
  for (const linalg::Launches& each : recorder.launches()) {
    EXPECT_EQ(each.name, "Sketch<float>");
    EXPECT_EQ(each.count, 1);
    EXPECT_EQ(each.work.bytes, 128 * 6 * 6 * 4);
  }
}

TEST(StartOfQ, OfAnEmptyParameterIsEmpty) {
  EXPECT_EQ(start_of_Q({0, 5}, {}, {}, at::kFloat).sizes(), (std::vector<int64_t>{0, 0}));
}

TEST(ResizedQ, OfASmallerRankHasTheLeadingColumns) {
  const at::Tensor Q = normal({2, 9, 5}, 1);
  EXPECT_TRUE(bitwise_equal(resized_Q(Q, 3, 0, 0), Q.narrow(-1, 0, 3)));
  EXPECT_TRUE(resized_Q(Q, 3, 0, 0).is_contiguous());
}

TEST(ResizedQ, OfALargerRankHasOrthonormalColumnsBesideTheOldOnes) {
  at::Tensor Q = normal({2, 9, 3}, 1, at::kFloat);
  Q.select(-1, 1).zero_();  // of a matrix of lower rank
  const at::Tensor larger = resized_Q(Q, 6, 4, 5);
  EXPECT_EQ(larger.scalar_type(), at::kFloat);
  EXPECT_TRUE(bitwise_equal(larger.narrow(-1, 0, 3), Q));
  const at::Tensor fresh = larger.narrow(-1, 3, 3);
  for (int64_t i = 0; i < 2; ++i) EXPECT_LE(orthogonality_error(fresh[i]), 1e-6) << "matrix " << i;
  EXPECT_LE(Q.mT().matmul(fresh).abs().max().item<double>(), 1e-5);
  EXPECT_FALSE(bitwise_equal(resized_Q(Q, 6, 4, 6), larger)) << "of another parameter";
  EXPECT_FALSE(bitwise_equal(larger[0], larger[1]));
}

}  // namespace

}  // namespace torchdion::engine
