#include "linalg/copy.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "tensors.h"

namespace torchdion::linalg {

namespace {

// Every 16-bit number, in FP32.
at::Tensor every_number(at::ScalarType dtype) {
  return at::arange(-0x8000, 0x8000, at::kShort).view(dtype).to(at::kFloat).view({256, 256});
}

// FP32 numbers around those halfway between neighbouring 16-bit ones, of both signs: beyond the largest and below the
// smallest too.
at::Tensor around_halfway(at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(0, 0x8000, at::kShort).view(dtype).to(at::kFloat);
  const at::Tensor finite = std::get<0>(numbers.masked_select(numbers.isfinite()).sort());
  const at::Tensor gaps = finite.slice(0, 1) - finite.slice(0, 0, -1), last = gaps.slice(0, -1);
  const at::Tensor halfway = finite + at::cat({gaps, last}) / 2;
  const at::Tensor bits = halfway.view(at::kInt), all = at::cat({bits - 1, bits, bits + 1}).view(at::kFloat);
  return at::stack({all, -all});
}

// As torch rounds, but for finite numbers beyond FP16: BF16 has the range of FP32.
at::Tensor stored(const at::Tensor& numbers, at::ScalarType dtype) {
  const at::Tensor bounded = dtype == at::kHalf ? numbers.clamp(-65504, 65504) : numbers;
  return at::where(numbers.isfinite(), bounded, numbers).to(dtype);
}

void expect_same_numbers(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(found.isnan(), expected.isnan()));
  const at::Tensor numbers = expected.isnan().logical_not();
  EXPECT_TRUE(bitwise_equal(found.masked_select(numbers), expected.masked_select(numbers)));
}

class CopyOf16Bits : public testing::TestWithParam<at::ScalarType> {};

TEST_P(CopyOf16Bits, ReadsEveryNumberAndRoundsToTheNearest) {
  const at::Tensor numbers = every_number(GetParam()), copy = at::zeros({256, 256}, GetParam());
  const at::Tensor back = at::zeros({256, 256});
  copy_(Matrices(copy), Matrices(numbers));
  expect_same_numbers(copy, numbers.to(GetParam()));
  copy_(Matrices(back), Matrices(numbers.to(GetParam())));
  expect_same_numbers(back, numbers);

  const at::Tensor between = around_halfway(GetParam()), rounded = at::zeros(between.sizes(), GetParam());
  copy_(Matrices(rounded), Matrices(between));
  expect_same_numbers(rounded, stored(between, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CopyOf16Bits, testing::Values(at::kHalf, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Copy, KeepsANaNWhoseHighBitsAreThoseOfInfinity) {
  const at::Tensor low = at::full({1, 3}, std::bit_cast<float>(0x7f800001));
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor copy = at::zeros({1, 3}, dtype);
    copy_(Matrices(copy), Matrices(low));
    EXPECT_TRUE(copy.isnan().all().item<bool>()) << dtype;
  }
}

TEST(Copy, TakesAMultipleInEveryLayout) {
  for (at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const at::Tensor B = normal({3, 40, 300}, 1, dtype);
    for (bool by_columns : {false, true}) {
      for (const at::Tensor& source : {B, column_major(B), at::cat({B, B}, 2).slice(2, 150, 450)}) {
        for (double multiple : {1., 0.5}) {
          const at::Tensor A = by_columns ? column_major(at::zeros_like(B)) : at::zeros_like(B);
          copy_(Matrices(A), Matrices(source), multiple);
          EXPECT_TRUE(at::equal(A, multiple * source));
        }
      }
    }
  }
}

}  // namespace

}  // namespace torchdion::linalg
