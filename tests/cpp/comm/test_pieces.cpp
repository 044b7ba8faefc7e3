#include "comm/pieces.h"

#include <gtest/gtest.h>

#include "comm/ranks_as_threads.h"
#include "tensors.h"

namespace torchdion::comm {

namespace {

struct Shape {
  std::vector<int64_t> sizes;
  int64_t dim;
  AxisOptions options;
};

class Pieces : public testing::TestWithParam<Shape> {};

TEST_P(Pieces, OfAllRanksMakeUpTheWhole) {
  const Shape& shape = GetParam();
  const at::Tensor whole = normal(shape.sizes, 1);
  Meeting meeting(4);
  on_every_rank(&meeting, [&](Axis line) {
    const Axis axis = axis_of(&meeting, line.rank, shape.options);
    const at::Tensor piece = piece_of(whole, shape.dim, axis);
    EXPECT_EQ(piece.size(shape.dim), axis.piece(whole.size(shape.dim)).size);
    EXPECT_TRUE(bitwise_equal(gather_pieces(piece, shape.dim, whole.size(shape.dim), axis), whole));
    EXPECT_EQ(axis.traffic().bytes(), 0) << "no part of a step";
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Pieces,
                         testing::Values(Shape{{8, 3}, 0, {}}, Shape{{3, 7}, 1, {}},      // even, and one piece short
                                         Shape{{5, 2, 3}, 0, {}}, Shape{{2, 2}, -1, {}},  // with empty pieces
                                         Shape{{0, 4}, 0, {}}, Shape{{6, 0}, 0, {}},
                                         Shape{{3, 7}, 1, {.chunks = {2, 2}, .pieces = {0, 2, 1, 3}}}));

TEST(Pieces, OfAnAbsentAxisAreTheWhole) {
  const at::Tensor whole = normal({3, 4}, 1);
  EXPECT_TRUE(piece_of(whole, 1, {}).is_alias_of(whole));
  EXPECT_TRUE(bitwise_equal(gather_pieces(whole, 1, 4, {}), whole));
}

}  // namespace

}  // namespace torchdion::comm
