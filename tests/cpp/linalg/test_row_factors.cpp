#include "linalg/rows.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

class RowFactorsOf : public testing::TestWithParam<at::ScalarType> {};

TEST_P(RowFactorsOf, FollowTheMeansOfSquaresOfTheRowsThatThereAre) {
  const at::ScalarType dtype = GetParam();
  for (const int64_t rows : {1, 7, 300, 1000}) {
    for (const bool chooses : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << rows << " " << chooses);
      const int64_t of_update = chooses ? rows / 3 + 1 : rows;
      const at::Tensor squares = normal({3, of_update}, 1, at::kDouble).square();
      const at::Tensor v = normal({3, rows, 1}, 2).abs().to(dtype), old_v = v.to(at::kDouble).clone();
      const at::Tensor source = at::full({3, rows}, -1, at::kInt), unchanged = at::tensor({0.0F, 1.0F, 0.0F});
      for (int64_t k = 0; k < of_update; ++k) source.select(1, (2 * k) % rows + (2 * k >= rows && rows % 2 == 0)) = k;
      const VarianceRule rule{.beta2 = 0.9, .n = 5, .frozen = {.unchanged = unchanged.const_data_ptr<float>()}};
      const RowFactors found = row_factors_(squares, Matrices(v), chooses ? source : at::Tensor(), rule);
      const at::Tensor kept = keep_norms(found, at::kDouble);
      for (int64_t i = 0; i < 3; ++i) {
        double before = 0, after = 0;
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t k = chooses ? source[i][row].item<int64_t>() : row;
          const double old = old_v[i][row][0].item<double>(), now = v[i][row][0].item<double>();
          const double factor = found.factors[i][row].item<double>();
          if (k < 0) {
            EXPECT_EQ(factor, 0);
            EXPECT_EQ(now, old);
            continue;
          }
          const double square = squares[i][k].item<double>(), variance = 0.9 * old + 0.1 / 5 * square;
          EXPECT_NEAR(now, i == 1 ? old : variance, 4 * unit_roundoff(dtype) * (old + variance));
          const double expected = 1 / (std::sqrt(variance) + 1e-8);
          EXPECT_NEAR(factor, expected, 1e-12 * expected);
          before += square;
          after += square * factor * factor;
        }
        EXPECT_NEAR(found.norms[i][0].item<double>(), before, 1e-12 * before);
        EXPECT_NEAR(found.norms[i][1].item<double>(), after, 1e-12 * after);
        EXPECT_LE(relative_error(kept[i], found.factors[i] * std::sqrt(before / after)), 1e-12);
      }
    }
  }
}

TEST_P(RowFactorsOf, OfUpdatesOfZerosAreZeroAndOfAStepThatIsLeftOutNothingIsWritten) {
  const at::Tensor v = normal({2, 40, 1}, 1).abs().to(GetParam()), before = v.clone();
  const at::Tensor left_out = at::tensor({1.0F});
  const RowFactors found = row_factors_(at::zeros({2, 40}, at::kDouble), Matrices(v), {},
                                        {.beta2 = 0.9, .n = 3, .frozen = {left_out.const_data_ptr<float>()}});
  EXPECT_TRUE(bitwise_equal(v, before));
  EXPECT_EQ(keep_norms(found, at::kFloat).abs().max().item<double>(), 0);
}

TEST_P(RowFactorsOf, OfNaNAreNaN) {
  const at::Tensor v = at::zeros({1, 4, 1}, GetParam()), squares = at::ones({1, 4}, at::kDouble);
  squares[0][2] = std::nan("");
  const RowFactors found = row_factors_(squares, Matrices(v), {}, {.beta2 = 0.9, .n = 3});
  EXPECT_TRUE(keep_norms(found, at::kFloat).isnan().all().item<bool>());
  EXPECT_TRUE(v[0][2].isnan().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RowFactorsOf, testing::ValuesIn(kEveryDtype));

}  // namespace

}  // namespace torchdion::linalg
