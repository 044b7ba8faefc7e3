#include "engine/matrix_form.h"

#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::engine {

namespace {

struct FormCase {
  const char* name;
  std::vector<int64_t> sizes;
  MatrixForm form;
  std::vector<int64_t> matrices;
  // The same from reshape() alone.
  at::Tensor (*reference)(const at::Tensor&);
};

const std::vector<FormCase> kForms = {
    {"Matrix", {12, 8}, {}, {12, 8}, [](const at::Tensor& t) { return t; }},
    {"Vector",
     {12},
     {},
     {12, 1},
     [](const at::Tensor& t) {
       return t.reshape({12, 1});
     }},
    {"Convolution",
     {12, 2, 2, 3},
     {},
     {12, 12},
     [](const at::Tensor& t) {
       return t.reshape({12, 12});
     }},
    {"Blocks", {12, 8}, {.blocks = 3}, {3, 4, 8}, [](const at::Tensor& t) { return at::stack(t.chunk(3, 0)); }},
    {"Experts", {5, 12, 8}, {.batch_dims = 1}, {5, 12, 8}, [](const at::Tensor& t) { return t; }},
    {"StackedExperts", {2, 5, 12, 8}, {.batch_dims = 2}, {2, 5, 12, 8}, [](const at::Tensor& t) { return t; }},
    {"ExpertsOfBlocks",
     {5, 12, 8},
     {.batch_dims = 1, .blocks = 2},
     {5, 2, 6, 8},
     [](const at::Tensor& t) { return at::stack(t.chunk(2, 1), 1); }},
    {"FanInFirst", {12, 8}, {.fan_in_first = true}, {8, 12}, [](const at::Tensor& t) { return t.mT(); }},
    {"TransposedConvolution",
     {12, 4, 2},
     {.fan_in_first = true},
     {8, 12},
     [](const at::Tensor& t) {
       return t.reshape({12, 8}).mT();
     }},
    {"TransposedExperts",
     {5, 12, 4, 2},
     {.batch_dims = 1, .fan_in_first = true},
     {5, 8, 12},
     [](const at::Tensor& t) {
       return t.reshape({5, 12, 8}).mT();
     }},
};

class MatrixFormOf : public testing::TestWithParam<FormCase> {};

TEST_P(MatrixFormOf, ViewsEveryMatrixWhereItLies) {
  const FormCase& c = GetParam();
  EXPECT_EQ(matrix_sizes(c.sizes, c.form), c.matrices);
  at::Tensor tensor = normal(c.sizes, 1);
  const std::optional<at::Tensor> view = matrix_view(tensor, c.form);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->sizes(), c.matrices);
  EXPECT_TRUE(at::equal(*view, c.reference(tensor)));
  view->mul_(2);
  EXPECT_TRUE(at::equal(tensor, 2 * normal(c.sizes, 1))) << "a write through the view must reach the tensor";
}

INSTANTIATE_TEST_SUITE_P(Forms, MatrixFormOf, testing::ValuesIn(kForms),
                         [](const auto& info) { return info.param.name; });

TEST(MatrixForm, ThatDoesNotFitIsRefused) {
  for (MatrixForm form : {MatrixForm{.blocks = 4}, MatrixForm{.blocks = 0}, MatrixForm{.blocks = -3},
                          MatrixForm{.batch_dims = 2}, MatrixForm{.batch_dims = 3}, MatrixForm{.batch_dims = -1}}) {
    EXPECT_THROW(matrix_sizes({6, 4}, form), c10::ValueError);
    EXPECT_THROW(matrix_view(normal({6, 8}, 1).slice(1, 0, 4), form), c10::ValueError);
  }
  EXPECT_THROW(matrix_sizes({}, {}), c10::ValueError);
}

TEST(MatrixView, FollowsStridesWhereTheyAllowIt) {
  const at::Tensor transposed = normal({8, 12}, 1).mT();
  EXPECT_EQ(matrix_view(transposed, {})->data_ptr(), transposed.data_ptr());
  const at::Tensor rows = normal({24, 8}, 1).slice(0, 0, 24, 2);
  EXPECT_TRUE(at::equal(*matrix_view(rows, {.blocks = 3}), at::stack(rows.chunk(3, 0))));
}

TEST(MatrixView, OfAConvolutionInChannelsLastIsNone) {
  const at::Tensor weight = normal({6, 4, 3, 3}, 1).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_FALSE(matrix_view(weight, {}).has_value());
}

// What products cannot read gets contiguous copies, and what ranks have pieces of must be contiguous itself.
TEST(MatrixStrides, AreThoseOfACopyOfWhatKernelsCannotFollow) {
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
