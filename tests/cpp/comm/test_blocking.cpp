#include "comm/blocking.h"

#include <gtest/gtest.h>

#include "comm/ranks_as_threads.h"
#include "tensors.h"

namespace torchdion::comm {

namespace {

constexpr int kCopies = 3;

// What a rank has: tensors of several shapes, dtypes and memory formats, other numbers on each.
std::vector<at::Tensor> tensors_of(int rank) {
  const auto own = [&](std::vector<int64_t> sizes) {
    return normal(sizes, 10 * rank + static_cast<int>(sizes.size()));
  };
  return {own({3, 5}),
          own({4, 4}).to(at::kFloat),
          own({5, 3}).t(),
          own({}),
          own({0, 7}),
          own({6}).to(at::kBFloat16),
          own({2, 3, 4, 5}).to(at::kDouble, false, false, at::MemoryFormat::ChannelsLast)};
}

TEST(Copies, AMeanIsThatOfAllRanksSummedInNoLessThanSinglePrecision) {
  Meeting meeting(kCopies);
  on_every_rank(&meeting, [](const Axis& axis) {
    const std::vector<at::Tensor> own = tensors_of(axis.rank);
    for (std::size_t i = 0; i < own.size(); ++i) {
      average(own[i], axis);
      const at::ScalarType dtype = own[i].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      at::Tensor sum = at::zeros(own[i].sizes(), dtype);
      for (int rank = 0; rank < kCopies; ++rank) sum.add_(tensors_of(rank)[i].to(dtype));
      const at::Tensor expected = sum.div(kCopies).to(own[i].scalar_type());
      EXPECT_TRUE(at::allclose(own[i], expected, dtype == at::kDouble ? 1e-12 : 1e-5, 0)) << i;
      EXPECT_EQ(own[i].strides(), tensors_of(0)[i].strides()) << i;
    }
  });
}

TEST(Copies, ACopyIsThatOfTheFirstRank) {
  Meeting meeting(kCopies);
  on_every_rank(&meeting, [](const Axis& axis) {
    const std::vector<at::Tensor> own = tensors_of(axis.rank), first = tensors_of(0);
    for (std::size_t i = 0; i < own.size(); ++i) {
      copy_from_first(own[i], axis);
      EXPECT_TRUE(bitwise_equal(own[i], first[i])) << i;
    }
  });
}

TEST(Copies, WhatDiffersOnOneRankByOneBitDiffersOnAll) {
  for (const int odd : {-1, 0, kCopies - 1}) {
    Meeting meeting(kCopies);
    on_every_rank(&meeting, [&](const Axis& axis) {
      const std::vector<at::Tensor> own = tensors_of(0);
      if (axis.rank == odd) {
        own[2][1][1] += 1e-15;
        own[5][0] *= -1;
      }
      const bool some = odd >= 0;
      const std::vector<bool> expected{false, false, some, false, false, some, false};
      EXPECT_EQ(differing(own, axis), expected);
    });
  }
}

TEST(Copies, OfAnyDtypeAreComparedAndMadeEqual) {
  for (const at::ScalarType dtype :
       {at::kBool, at::kShort, at::kComplexFloat, at::kFloat8_e4m3fn, at::kBFloat16, at::kDouble}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{}, {3, 5}}) {
      Meeting meeting(2);
      on_every_rank(&meeting, [&](const Axis& axis) {
        at::Tensor tensor = at::full(sizes, axis.rank == 0 ? 1.0 : 0.0, at::kFloat).to(dtype);
        if (tensor.dim() == 2) tensor = tensor.t();
        EXPECT_EQ(differing({tensor}, axis), std::vector<bool>{true}) << dtype;
        copy_from_first(tensor, axis);
        EXPECT_EQ(differing({tensor}, axis), std::vector<bool>{false}) << dtype;
        EXPECT_TRUE(at::real(tensor.to(at::kComplexDouble)).eq(1).all().item<bool>()) << dtype;
      });
    }
  }
}

// Beyond 16 MiB a tensor is copied in parts, also where one row has more.
TEST(Digest, IsThatOfTheBytesHoweverTheyLieAndWhateverTheirNumber) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3000, 3001}, {2, 5'000'001}, {1, 2, 2'500'000}}) {
    const at::Tensor tensor = at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
    const at::Tensor strided = tensor.transpose(-1, -2).contiguous().transpose(-1, -2);
    ASSERT_FALSE(strided.is_contiguous());
    const int64_t digest = digest_of(tensor);
    EXPECT_EQ(digest_of(strided), digest);
    const at::Tensor bits = tensor.view(at::kInt).view(-1);
    for (const int64_t index : {int64_t{0}, tensor.numel() / 2, tensor.numel() - 1}) {
      bits[index].bitwise_xor_(1);
      EXPECT_NE(digest_of(tensor), digest) << index;
      bits[index].bitwise_xor_(1);
    }
    EXPECT_EQ(digest_of(tensor), digest);
  }
}

struct Cut {
  std::vector<int64_t> sizes;
  int64_t dim;
  AxisOptions options;
};

class Pieces : public testing::TestWithParam<Cut> {};

TEST_P(Pieces, OfAllRanksMakeUpTheWhole) {
  const Cut& shape = GetParam();
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
                         testing::Values(Cut{{8, 3}, 0, {}}, Cut{{3, 7}, 1, {}},      // even, and one piece short
                                         Cut{{5, 2, 3}, 0, {}}, Cut{{2, 2}, -1, {}},  // with empty pieces
                                         Cut{{0, 4}, 0, {}}, Cut{{6, 0}, 0, {}},
                                         Cut{{3, 7}, 1, {.chunks = {2, 2}, .pieces = {0, 2, 1, 3}}}));

TEST(Pieces, OfAnAbsentAxisAreTheWhole) {
  const at::Tensor whole = normal({3, 4}, 1);
  EXPECT_TRUE(piece_of(whole, 1, {}).is_alias_of(whole));
  EXPECT_TRUE(bitwise_equal(gather_pieces(whole, 1, 4, {}), whole));
}

}  // namespace

}  // namespace torchdion::comm
