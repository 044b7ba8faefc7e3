#include "engine/copies.h"

#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::engine {

namespace {

TEST(Copies, OfAContiguousTensorToWriteIsTheTensor) {
  Copies copies;
  const at::Tensor tensor = normal({3, 4}, 1);
  EXPECT_TRUE(copies.writable(tensor).is_same(tensor));
}

TEST(Copies, AreWrittenBackWhenAskedAndNotBefore) {
  Copies copies;
  const at::Tensor wide = at::zeros({3, 8}), view = wide.slice(1, 0, 8, 2);
  copies.writable(view).fill_(1);
  copies.readable(view).fill_(2);
  EXPECT_EQ(wide.sum().item<double>(), 0);
  copies.write_back();
  EXPECT_TRUE(at::equal(view, at::ones({3, 4})));
  EXPECT_EQ(wide.sum().item<double>(), 12) << "what lies between must stay";
}

// What products cannot read gets contiguous copies, and what ranks have pieces of must be contiguous itself.
TEST(Copies, AreMadeOfWhatKernelsCannotFollow) {
  const at::Tensor X = normal({12, 20}, 1), gaps = at::zeros({12, 20, 2}).select(-1, 0);
  const auto of_copy = [](const at::Tensor& tensor, MatrixForm form, bool cut) {
    return std::pair(strides_of_written(tensor, form, cut).of_copy, strides_of_read(tensor, form, cut).of_copy);
  };
  EXPECT_EQ(of_copy(X, {}, true), std::pair(false, false));
  EXPECT_EQ(of_copy(column_major(X), {}, false), std::pair(false, false));
  EXPECT_EQ(of_copy(column_major(X), {}, true), std::pair(true, true)) << "of a piece";
  EXPECT_EQ(of_copy(gaps, {}, false), std::pair(true, false)) << "gradients are read through any strides";
  EXPECT_EQ(of_copy(at::_neg_view(X), {}, false), std::pair(true, false));
  EXPECT_EQ(of_copy(X.view({4, 3, 20}).mT(), {}, false), std::pair(true, true)) << "no matrix as it lies";
  const MatrixStrides transposed = strides_of_written(gaps, {.fan_in_first = true}, false);
  EXPECT_EQ(transposed.row, 1);
  EXPECT_EQ(transposed.col, 20);
}

}  // namespace

}  // namespace torchdion::engine
