#include "linalg/matrices.h"

#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

// What a kernel reads through the pointers and strides.
at::Tensor read(const Matrices& matrices) {
  at::Tensor out = at::empty({matrices.count(), matrices.rows, matrices.cols}, at::kDouble);
  auto entries = out.accessor<double, 3>();
  for (int64_t k = 0; k < matrices.count(); ++k) {
    for (int64_t i = 0; i < matrices.rows; ++i) {
      for (int64_t j = 0; j < matrices.cols; ++j) {
        entries[k][i][j] = matrices.matrix<double>(k)[i * matrices.row_stride + j * matrices.col_stride];
      }
    }
  }
  return out;
}

struct View {
  const char* name;
  at::Tensor tensor;
};

std::vector<View> views() {
  const at::Tensor stack = normal({2, 3, 6, 8}, 1);
  return {{"contiguous stack", stack},
          {"one matrix", stack[0][0]},
          {"column-major", column_major(stack)},
          {"permuted stack dimensions", stack.transpose(0, 1)},
          {"every second matrix", stack.slice(1, 0, 3, 2)},
          {"block of a larger matrix", stack.slice(2, 1, 4).slice(3, 2, 7)},
          {"one row", stack.slice(2, 3, 4)},
          {"one column", stack.slice(3, 3, 4)},
          {"one row, column-major", column_major(stack).slice(2, 3, 4)},
          {"one column, column-major", column_major(stack).slice(3, 3, 4)},
          {"one row, from a column", normal({2, 3, 8, 1}, 1).mT()},
          {"one column, from a row", normal({2, 3, 1, 8}, 1).mT()},
          {"one entry", stack.slice(2, 2, 3).slice(3, 5, 6)},
          {"one matrix many times", stack[1][2].expand({4, 6, 8})}};
}

TEST(Matrices, ReadEveryViewOfAStackWhereItLies) {
  for (const View& view : views()) {
    const int64_t m = view.tensor.size(-2), n = view.tensor.size(-1);
    const Matrices matrices(view.tensor);
    EXPECT_TRUE(at::equal(read(matrices), view.tensor.reshape({-1, m, n}))) << view.name;
    EXPECT_TRUE(at::equal(read(matrices.t()), view.tensor.mT().reshape({-1, n, m}))) << view.name;
    EXPECT_EQ(matrices.numel(), view.tensor.numel()) << view.name;
  }
}

// BLAS needs one stride of 1 and another, the leading dimension, of at least the length of what it strides over.
TEST(Matrices, OfOneRowOrOneColumnHaveStridesThatBlasTakes) {
  for (const View& view : views()) {
    const Matrices matrices(view.tensor);
    EXPECT_TRUE(is_strided_for_gemm(view.tensor)) << view.name;
    EXPECT_TRUE((matrices.col_stride == 1 && matrices.row_stride >= matrices.cols) ||
                (matrices.row_stride == 1 && matrices.col_stride >= matrices.rows))
        << view.name << ": " << matrices.row_stride << ", " << matrices.col_stride;
  }
}

TEST(Matrices, AreNotReadableByGemmWithGapsOrOverlaps) {
  const at::Tensor matrix = normal({6, 8}, 1);
  EXPECT_FALSE(is_strided_for_gemm(matrix.slice(1, 0, 8, 2)));
  EXPECT_FALSE(is_strided_for_gemm(matrix[0].expand({6, 8})));
  EXPECT_FALSE(is_strided_for_gemm(at::zeros({1}).expand({6, 8})));
  EXPECT_FALSE(is_strided_for_gemm(matrix.as_strided({3, 8}, {4, 1})));
}

TEST(Matrices, AppendSelectAndSliceKeepTheOrder) {
  const at::Tensor first = normal({2, 3, 4}, 1), second = normal({3, 4}, 2);
  Matrices matrices(first);
  matrices.append(second);
  const at::Tensor all = at::cat({first, second.unsqueeze(0)});
  EXPECT_TRUE(at::equal(read(matrices), all));
  EXPECT_TRUE(at::equal(read(matrices.select({2, 0})), all.index_select(0, at::tensor({2, 0}))));
  EXPECT_TRUE(at::equal(read(matrices.slice(1, 3)), all.slice(0, 1, 3)));
  EXPECT_TRUE(at::equal(read(Matrices(at::TensorList({first[0], second}))), all.index_select(0, at::tensor({0, 2}))));
}

TEST(Matrices, OfAnEmptyListAreRefused) { EXPECT_THROW(Matrices{at::TensorList()}, c10::ValueError); }

TEST(Matrices, OfAnEmptyStackAreNone) {
  EXPECT_EQ(Matrices(at::zeros({0, 3, 4})).count(), 0);
  EXPECT_EQ(Matrices(at::zeros({2, 0, 3, 4})).count(), 0);
}

TEST(ComputeDtype, IsDoubleWithAnyDoubleOperandAndFloatElse) {
  EXPECT_EQ(compute_dtype({at::kFloat, at::kDouble}), at::kDouble);
  EXPECT_EQ(compute_dtype({at::kFloat, at::kFloat}), at::kFloat);
  EXPECT_EQ(compute_dtype({at::kBFloat16, at::kHalf}), at::kFloat);
}

}  // namespace

}  // namespace torchdion::linalg
