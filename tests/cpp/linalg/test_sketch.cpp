#include "linalg/sketch.h"

#include <gtest/gtest.h>

#include "linalg/cpu/operations.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

at::Tensor block(RandomMatrix random, int64_t rows, int64_t cols, int64_t row_offset, int64_t col_offset,
                 at::ScalarType dtype = at::kFloat, double standard_deviation = 1) {
  const at::Tensor out = at::empty({rows, cols}, dtype);
  sketch_(out, random, row_offset, col_offset, standard_deviation);
  return out;
}

constexpr at::ScalarType kStorageDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

struct Slice {
  int64_t row, rows, col, cols;
};

class SketchSlice : public testing::TestWithParam<Slice> {};

TEST_P(SketchSlice, EqualsTheSliceOfTheWholeInEveryBit) {
  const auto [row, rows, col, cols] = GetParam();
  const RandomMatrix random = RandomMatrix::sketch(7, 3);
  for (at::ScalarType dtype : kStorageDtypes) {
    const at::Tensor whole = block(random, 40, 37, 0, 0, dtype, 0.25);
    EXPECT_TRUE(bitwise_equal(block(random, rows, cols, row, col, dtype, 0.25),
                              whole.slice(0, row, row + rows).slice(1, col, col + cols).contiguous()))
        << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Offsets, SketchSlice,
                         testing::Values(Slice{0, 40, 0, 37}, Slice{17, 9, 0, 37}, Slice{0, 40, 5, 1},
                                         Slice{3, 5, 1, 2}, Slice{3, 5, 2, 3}, Slice{39, 1, 31, 6},
                                         Slice{11, 13, 7, 29}));

TEST(Sketch, OfAStackHasAMatrixOfEachOfTheStreamsInARow) {
  for (at::ScalarType dtype : kStorageDtypes) {
    const at::Tensor stack = at::empty({3, 4, 7}, dtype);
    sketch_(stack, RandomMatrix::start(7, 2, 5), 3, 6, 0.25);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(bitwise_equal(stack[i], block(RandomMatrix::start(7, 2, 5 + i), 4, 7, 3, 6, dtype, 0.25))) << dtype;
    }
  }
}

// CUDA's, where the test runs on its operations. FP16 holds the scaled numbers as subnormal ones, or not at all.
TEST(Sketch, HasTheBitsOfTheCpus) {
  for (at::ScalarType dtype : kStorageDtypes) {
    for (double standard_deviation : {1.0, 1 / std::sqrt(300.0), 1e-6, 1e5}) {
      for (const auto [row, rows, col, cols] : {Slice{0, 300, 0, 129}, Slice{7, 33, 2, 1}, Slice{1, 20, 3, 30}}) {
        const at::Tensor found = at::empty({2, rows, cols}, dtype), expected = at::empty({2, rows, cols}, dtype);
        const RandomMatrix random = RandomMatrix::start(7, 1, 0);
        sketch_(found, random, row, col, standard_deviation);
        cpu::Operations::sketch_(expected, random, row, col, standard_deviation);
        EXPECT_TRUE(bitwise_equal(found, expected)) << dtype << ", scaled by " << standard_deviation;
        EXPECT_TRUE(at::isfinite(found).all().item<bool>()) << dtype << ", scaled by " << standard_deviation;
      }
    }
  }
}

TEST(Sketch, TakesTheStepFromTheCountOfThoseBefore) {
  const float steps_before = 2;
  RandomMatrix random = RandomMatrix::sketch(7, 0);
  random.steps_before = &steps_before;
  EXPECT_TRUE(bitwise_equal(block(random, 5, 6, 0, 0), block(RandomMatrix::sketch(7, 3), 5, 6, 0, 0)));
}

TEST(Sketch, IsTheSameOnAnyNumberOfThreads) {
  const RandomMatrix random = RandomMatrix::sketch(7, 3);
  const int threads = at::get_num_threads();
  const at::Tensor parallel = block(random, 600, 100, 0, 0);
  at::set_num_threads(1);
  const at::Tensor serial = block(random, 600, 100, 0, 0);
  at::set_num_threads(threads);
  EXPECT_TRUE(bitwise_equal(parallel, serial));
}

TEST(Sketch, RoundsTheSameNumbersToEveryDtype) {
  const RandomMatrix random = RandomMatrix::sketch(7, 3);
  const at::Tensor exact = block(random, 20, 20, 0, 0, at::kDouble);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_LE((block(random, 20, 20, 0, 0, dtype).to(at::kDouble) / exact - 1).abs().max().item<double>(),
              unit_roundoff(dtype))
        << dtype;
  }
}

TEST(Sketch, HasTheMomentsOfIndependentNormals) {
  const int64_t n = 400;
  const at::Tensor z = block(RandomMatrix::sketch(1, 2), n, n, 0, 0, at::kDouble);
  const double standard_error = 1.0 / static_cast<double>(n);  // of the mean of n² entries
  EXPECT_LE(std::abs(z.mean().item<double>()), 4 * standard_error);
  EXPECT_LE(std::abs(z.square().mean().item<double>() - 1), 4 * std::sqrt(2) * standard_error);
  EXPECT_LE(std::abs(z.pow(3).mean().item<double>()), 4 * std::sqrt(15) * standard_error);
  EXPECT_LE(std::abs(z.pow(4).mean().item<double>() - 3), 4 * std::sqrt(96) * standard_error);
  EXPECT_GE(z.abs().max().item<double>(), 4) << "expected maximum of 160 000: 4.4";
  // Neighbours in a row share a Philox block or even a Box–Muller pair; neighbours in a column share neither.
  for (const at::Tensor& neighbours : {z.slice(1, 1) * z.slice(1, 0, -1), z.slice(0, 1) * z.slice(0, 0, -1)}) {
    EXPECT_LE(std::abs(neighbours.mean().item<double>()), 4.1 * standard_error);
  }
  EXPECT_LE(std::abs((z.slice(1, 1).square() * z.slice(1, 0, -1).square()).mean().item<double>() - 1),
            4.1 * std::sqrt(8) * standard_error);
}

TEST(Sketch, HasTheTailsOfNormals) {
  const int64_t n = 1000;
  const at::Tensor z = block(RandomMatrix::sketch(1, 2), n, n, 0, 0, at::kDouble);
  for (const double bound : {0.01, 1.0, 2.0, 3.0, 4.0}) {
    const double expected = std::erfc(bound / std::sqrt(2)) / 2;
    const double standard_error = std::sqrt(expected * (1 - expected)) / static_cast<double>(n);
    EXPECT_NEAR((z > bound).to(at::kDouble).mean().item<double>(), expected, 4 * standard_error) << bound;
    EXPECT_NEAR((z < -bound).to(at::kDouble).mean().item<double>(), expected, 4 * standard_error) << bound;
  }
}

TEST(Sketch, IsScaledByItsStandardDeviation) {
  const RandomMatrix random = RandomMatrix::sketch(7, 3);
  EXPECT_TRUE(at::equal(block(random, 5, 6, 2, 3, at::kDouble, 0.5), 0.5 * block(random, 5, 6, 2, 3, at::kDouble)));
}

TEST(Sketch, DiffersBetweenSeedsStepsAndStarts) {
  std::vector<at::Tensor> all;
  for (const RandomMatrix& random :
       {RandomMatrix::sketch(0, 1), RandomMatrix::sketch(1, 0), RandomMatrix::sketch(1, 1), RandomMatrix::sketch(-1, 1),
        RandomMatrix::sketch(int64_t{1} << 32, 1), RandomMatrix::sketch(1, int64_t{1} << 32),
        RandomMatrix::start(1, 0, 0), RandomMatrix::start(1, 0, 1), RandomMatrix::start(1, 1, 0)}) {
    all.push_back(block(random, 10, 10, 0, 0, at::kDouble).flatten());
  }
  // Correlations of 100 numbers each: 5 standard errors are 0.5.
  const at::Tensor correlations = at::corrcoef(at::stack(all)) - at::eye(static_cast<int64_t>(all.size()), at::kDouble);
  EXPECT_LE(correlations.abs().max().item<double>(), 0.5);
}

}  // namespace

}  // namespace torchdion::linalg
