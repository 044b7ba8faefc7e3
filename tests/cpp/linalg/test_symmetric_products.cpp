#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "linalg/backend.h"
#include "linalg/cuda/lower_tiles.h"
#include "linalg/gemm.h"
#include "linalg/recorder.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

constexpr const char* kByHalf = "symmetric BF16";

TEST(LowerTiles, AreEachTakenOnce) {
  for (int32_t across = 1; across <= 40; ++across) {
    const int64_t p = across * kLowerTile;
    std::set<std::pair<int32_t, int32_t>> taken;
    for (int32_t i = 0; i < count_lower_tiles(p); ++i) {
      const LowerTile tile = lower_tile(i / (across + 1), i % (across + 1), across);
      EXPECT_TRUE(0 <= tile.col && tile.col <= tile.row && tile.row < across) << tile.row << ", " << tile.col;
      taken.emplace(tile.row, tile.col);
    }
    EXPECT_EQ(taken.size(), static_cast<std::size_t>(across) * (across + 1) / 2);
  }
}

TEST(LowerTiles, HoldTheEntriesOfTheirRowsUpToTheDiagonal) {
  EXPECT_EQ(count_lower_entries(100), 100 * 100);
  EXPECT_EQ(count_lower_entries(256), 256 * 256);
  EXPECT_EQ(count_lower_entries(257), 256 * 256 + 257);
  EXPECT_EQ(count_lower_entries(2048), 36 * 256 * 256);
  EXPECT_EQ(tiles_across(2048), 8);
  EXPECT_EQ(tiles_across(2049), 9);
}

// On the emulated operations on CUDA.
class SymmetricProducts : public testing::Test {
 protected:
  void SetUp() override {
    if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  }

  // C = α A B + β D, and what was launched for it.
  static std::vector<Launches> multiply(const at::Tensor& C, const at::Tensor& D, const at::Tensor& A,
                                        const at::Tensor& B, double alpha, double beta) {
    const Recorder recorder;
    addmm_(Matrices(C), Matrices(D), Matrices(A), Matrices(B), alpha, beta, Precision::medium, /*symmetric=*/true);
    return recorder.launches();
  }

  static bool is_by_half(int64_t count, int64_t p, int64_t inner, at::ScalarType dtype = at::kBFloat16) {
    const at::Tensor X = at::zeros({count, p, inner}, dtype), C = at::empty({count, p, p}, dtype);
    return multiply(C, C, X, X.mT(), 1, 0).front().name == kByHalf;
  }

  // Up to the rounding of sums in BF16; and symmetric where tiles were stored twice.
  static void expect_product(const at::Tensor& C, const at::Tensor& exact) {
    EXPECT_LE(relative_error(C, exact), 0x1p-8);
    EXPECT_LE((C.to(at::kDouble) - exact).abs().max().item<double>(), 0x1p-7 * exact.abs().max().item<double>());
    for (int64_t row = kLowerTile; row < C.size(1); row += kLowerTile) {
      const at::Tensor below = C.slice(1, row, row + kLowerTile).slice(2, 0, row);
      EXPECT_TRUE(bitwise_equal(below, C.slice(2, row, row + kLowerTile).slice(1, 0, row).mT()));
    }
  }

  static constexpr int64_t kCount = 4, kSide = 776, kInner = 24;  // a side of three tiles and a part of one
};

TEST_F(SymmetricProducts, OfAMatrixAndItsTransposeComputeTheirLowerTiles) {
  for (bool by_columns : {false, true}) {
    const at::Tensor X = laid_out(normal({kCount, kSide, kInner}, 1, at::kBFloat16), by_columns);
    const at::Tensor C = at::full({kCount, kSide, kSide}, NAN, at::kBFloat16);
    const std::vector<Launches> launches = multiply(C, C, X, X.mT(), 0.5, 0);
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_EQ(launches[0].name, kByHalf);
    EXPECT_EQ(launches[0].work.operations, kCount * 2 * kInner * count_lower_entries(kSide));
    EXPECT_EQ(launches[0].work.bytes, kCount * 2 * (kSide * kInner + kSide * kSide));
    const at::Tensor exact = X.to(at::kDouble);
    expect_product(C, 0.5 * exact.matmul(exact.mT()));
  }
}

TEST_F(SymmetricProducts, OfSymmetricMatricesAddAThird) {
  const at::Tensor half = normal({kCount, kSide, kSide}, 1, at::kBFloat16) / 32, S = half + half.mT();
  const at::Tensor commuting = S * 0.5, other = laid_out(S * 2, true);
  for (const at::Tensor& D : {S, S * 4}) {  // an operand too, or none
    const at::Tensor C = at::full({kCount, kSide, kSide}, NAN, at::kBFloat16);
    const std::vector<Launches> launches = multiply(C, D, S, commuting, 0.5, 2);
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_EQ(launches[0].name, kByHalf);
    const int64_t read = D.data_ptr() == S.data_ptr() ? 0 : count_lower_entries(kSide);
    EXPECT_EQ(launches[0].work.bytes, kCount * 2 * (3 * kSide * kSide + read));
    const at::Tensor exact = S.to(at::kDouble);
    expect_product(C, 0.5 * exact.matmul(commuting.to(at::kDouble)) + 2 * D.to(at::kDouble));
  }
  const at::Tensor C = S.clone();  // in place, of operands of two layouts
  EXPECT_EQ(multiply(C, C, S, other, 1, -1).front().name, kByHalf);
  expect_product(C, S.to(at::kDouble).matmul(other.to(at::kDouble)) - S.to(at::kDouble));
}

TEST_F(SymmetricProducts, WriteNothingOutsideABlockOfLargerMatrices) {
  const at::Tensor X = normal({kCount, kSide, kInner}, 1, at::kBFloat16), exact = X.to(at::kDouble);
  const at::Tensor whole = normal({kCount, kSide + 4, kSide + 16}, 2, at::kBFloat16), before = whole.clone();
  const at::Tensor inside = whole.slice(1, 2, kSide + 2).slice(2, 8, kSide + 8);
  EXPECT_EQ(multiply(inside, inside, X, X.mT(), 1, 0).front().name, kByHalf);
  expect_product(inside, exact.matmul(exact.mT()));
  inside.copy_(before.slice(1, 2, kSide + 2).slice(2, 8, kSide + 8));
  EXPECT_TRUE(at::equal(whole, before));
}

TEST_F(SymmetricProducts, AreWholeWhereThatIsSoonerOrNoTilesFit) {
  EXPECT_TRUE(is_by_half(4, 776, 24));
  EXPECT_FALSE(is_by_half(1, 776, 24));  // fewer tiles than multiprocessors
  EXPECT_FALSE(is_by_half(40, 264, 24));
  EXPECT_TRUE(is_by_half(30, 512, 24));
  EXPECT_FALSE(is_by_half(66, 256, 24));  // a single tile
  EXPECT_FALSE(is_by_half(4, 777, 24));   // what does not begin at multiples of 16 bytes
  EXPECT_FALSE(is_by_half(4, 776, 25));
  EXPECT_FALSE(is_by_half(4, 776, 24, at::kFloat));
  EXPECT_FALSE(is_by_half(4, 776, 24, at::kHalf));
  const at::Tensor X = at::zeros({4, 776, 24}, at::kBFloat16), C = at::empty({4, 776, 776}, at::kBFloat16);
  const Recorder recorder;
  addmm_(Matrices(C), Matrices(C), Matrices(X), Matrices(X.mT()), 1, 0, Precision::medium, /*symmetric=*/false);
  EXPECT_EQ(recorder.launches().front().name, "cuBLAS BF16");
}

// No kernel adds to the product of a matrix whose columns are contiguous.
TEST_F(SymmetricProducts, AreWholeWithAnAddendWhereNoInnerDimensionIsContiguous) {
  const at::Tensor X = laid_out(normal({kCount, kSide, kInner}, 1, at::kBFloat16), true), exact = X.to(at::kDouble);
  const at::Tensor half = normal({kCount, kSide, kSide}, 2, at::kBFloat16), D = half + half.mT();
  const at::Tensor C = at::full({kCount, kSide, kSide}, NAN, at::kBFloat16);
  EXPECT_EQ(multiply(C, D, X, X.mT(), 1, 1).front().name, "cuBLAS BF16");
  EXPECT_LE(relative_error(C, exact.matmul(exact.mT()) + D.to(at::kDouble)), 0x1p-8);
}

}  // namespace

}  // namespace torchdion::linalg
