#include "linalg/gemm.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "linalg/backend.h"
#include "linalg/cpu/blas.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

struct Dtypes {
  at::ScalarType C, A, B;
};

struct Sizes {
  int64_t count, m, n, k;
};

// The last ones are large enough for several threads, for more than one piece of converted rows, and of a narrow
// product's sums.
const std::vector<Sizes> kSizes = {{1, 1, 1, 1}, {1, 1, 7, 5},   {2, 6, 1, 5},     {1, 6, 7, 1},     {5, 6, 7, 5},
                                   {1, 9, 4, 0}, {2, 130, 9, 3}, {1, 260, 40, 33}, {3, 140, 33, 40}, {2, 13, 12, 600}};

struct Scalars {
  double alpha, beta;
};

const std::vector<Scalars> kScalars = {{1, 0}, {-0.5, 1}, {2, -0.75}, {0, 0.5}};

// Entries of C' = alpha A B + beta C with what rounding may cost each of them: that of a sum of k products in the
// computing dtype, and that of C's own dtype.
void expect_product(const at::Tensor& actual, const at::Tensor& C, const at::Tensor& A, const at::Tensor& B,
                    Scalars scalars, bool read_C) {
  const at::ScalarType computing = compute_dtype({C.scalar_type(), A.scalar_type(), B.scalar_type()});
  const at::Tensor a = A.to(at::kDouble), b = B.to(at::kDouble);
  at::Tensor expected = scalars.alpha * a.matmul(b);
  at::Tensor magnitude = std::abs(scalars.alpha) * a.abs().matmul(b.abs());
  if (read_C) {
    expected = expected + scalars.beta * C.to(at::kDouble);
    magnitude = magnitude + std::abs(scalars.beta) * C.to(at::kDouble).abs();
  }
  const double sums = unit_roundoff(computing) * static_cast<double>(A.size(-1) + 4);
  // FP64 is checked against another FP64 sum, which errs as much.
  const at::Tensor allowed = magnitude * 2 * sums + expected.abs() * unit_roundoff(actual.scalar_type());
  const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
  EXPECT_TRUE(error.le(allowed).all().item<bool>())
      << "largest error over what is allowed: " << (error / allowed).max().item<double>();
}

class Gemm : public testing::TestWithParam<Dtypes> {};

TEST_P(Gemm, EqualsMatmulForEverySizeLayoutAndScalar) {
  const Dtypes dtypes = GetParam();
  for (const Sizes& s : kSizes) {
    const at::Tensor A = normal({s.count, s.m, s.k}, 1, dtypes.A), B = normal({s.count, s.k, s.n}, 2, dtypes.B),
                     C = normal({s.count, s.m, s.n}, 3, dtypes.C);
    for (const Scalars& scalars : kScalars) {
      for (int layout = 0; layout < 8; ++layout) {
        SCOPED_TRACE(testing::Message() << "count " << s.count << ", m " << s.m << ", n " << s.n << ", k " << s.k
                                        << ", alpha " << scalars.alpha << ", beta " << scalars.beta
                                        << ", column-major (C, A, B) " << layout);
        const at::Tensor result = laid_out(C.clone(), layout & 4);
        gemm_(Matrices(result), Matrices(laid_out(A, layout & 2)), Matrices(laid_out(B, layout & 1)), scalars.alpha,
              scalars.beta);
        expect_product(result, C, A, B, scalars, true);
      }
    }
  }
}

TEST(NarrowProducts, HaveTheSameBitsWhateverRowsAreComputedTogetherAndWriteNothingBesides) {
  if (!cpu::is_narrow(1, 1)) GTEST_SKIP() << "needs a processor with AVX2";
  constexpr int64_t m = 37;
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 300},  {8, 300}, {11, 300}, {16, 300},
                                                          {21, 300}, {70, 5},  {600, 32}, {33, 300}};
  for (const auto& [n, k] : sizes) {
    for (const bool by_columns : {false, true}) {
      const at::Tensor A = laid_out(normal({m, k}, 1, at::kFloat), by_columns), B = normal({k, n}, 2, at::kFloat);
      const auto product = [&](const at::Tensor& C, int64_t first, int64_t rows) {
        const cpu::Block<const float> left{A.const_data_ptr<float>(), A.stride(0), A.stride(1)};
        const cpu::Block<const float> right{B.const_data_ptr<float>(), n, 1};
        const cpu::Block<float> target{C.mutable_data_ptr<float>(), C.stride(0), 1};
        cpu::narrow_gemm(target.at(first, 0), left.at(first, 0), right, rows, n, k, -0.5F, 0.75F);
      };
      const at::Tensor wide = normal({m, n + 3}, 3, at::kFloat), before = wide.clone(), alone = wide.clone();
      product(wide, 0, m);
      for (int64_t row = 0; row < m; ++row) product(alone, row, 1);
      EXPECT_TRUE(at::equal(wide, alone)) << n;
      EXPECT_TRUE(at::equal(wide.slice(1, n), before.slice(1, n))) << n;
      expect_product(wide.slice(1, 0, n), before.slice(1, 0, n), A, B, {-0.5, 0.75}, true);
    }
  }
}

TEST(GemmOfRoundedOperands, TakesMatricesThatBeginAnywhere) {
  const at::Tensor a = normal({1 + 12 * 8}, 1, at::kFloat), c = normal({1 + 12 * 5}, 3, at::kFloat);
  const at::Tensor A = a.slice(0, 1).view({12, 8}), B = normal({8, 5}, 2, at::kFloat), C = c.slice(0, 1).view({12, 5});
  const at::Tensor expected = C + 2 * A.matmul(B), before = c[0].clone();
  gemm_(Matrices(C), Matrices(A), Matrices(B), 2, 1, Precision::high);
  EXPECT_LE(relative_error(C, expected), 0x1p-9);
  EXPECT_TRUE(at::equal(c[0], before));
}

TEST(GemmOfRoundedOperands, TakesStacksOfMatricesOfAnyNumberOfEntries) {
  const at::Tensor A = normal({3, 5, 8}, 1, at::kFloat), B = normal({3, 8, 3}, 2, at::kFloat), C = at::zeros({3, 5, 3});
  gemm_(Matrices(C), Matrices(A), Matrices(B), 1, 0, Precision::medium);
  EXPECT_LE(relative_error(C, A.matmul(B)), 0x1p-7);
}

// GPUs may cut off what they do not read, CPUs round it to nearest.
TEST(GemmOfRoundedOperands, IsThatOfTheNearestBFloat16OnCPUs) {
  if (precision_on(at::kCPU, Precision::high) == Precision::high) GTEST_SKIP() << "of the operations on CPUs";
  for (const Sizes& s : kSizes) {
    const at::Tensor A = normal({s.count, s.m, s.k}, 1, at::kFloat), B = normal({s.count, s.k, s.n}, 2, at::kFloat),
                     C = normal({s.count, s.m, s.n}, 3, at::kFloat);
    for (int layout = 0; layout < 8; ++layout) {
      const at::Tensor result = laid_out(C.clone(), layout & 4);
      gemm_(Matrices(result), Matrices(laid_out(A, layout & 2)), Matrices(laid_out(B, layout & 1)), 2, -0.75,
            Precision::medium);
      const at::Tensor a = A.to(at::kBFloat16).to(at::kFloat), b = B.to(at::kBFloat16).to(at::kFloat);
      expect_product(result, C, a, b, {2, -0.75}, true);
    }
  }
}

TEST(GemmOfRoundedOperands, AtHighIsThatAtHighestOnCPUs) {
  if (precision_on(at::kCPU, Precision::high) == Precision::high) GTEST_SKIP() << "of the operations on CPUs";
  const at::Tensor A = normal({70, 90}, 1, at::kFloat), B = normal({90, 50}, 2, at::kFloat);
  const at::Tensor high = at::zeros({70, 50}), highest = at::zeros({70, 50});
  gemm_(Matrices(high), Matrices(A), Matrices(B), 1, 0, Precision::high);
  gemm_(Matrices(highest), Matrices(A), Matrices(B), 1, 0, Precision::highest);
  EXPECT_TRUE(bitwise_equal(high, highest));
}

// On a GPU each of these is a product of its own.
TEST(GemmOfRoundedOperands, OfLargeMatricesInSeveralTensorsIsThatOfEach) {
  std::vector<at::Tensor> A, B, C;
  for (int64_t i = 0; i < 2; ++i) {
    A.push_back(normal({2048, 1}, 2 * i + 1, at::kFloat));
    B.push_back(normal({1, 2048}, 2 * i + 2, at::kFloat));
    C.push_back(at::zeros({2048, 2048}));
  }
  gemm_(Matrices(C), Matrices(A), Matrices(B), 1, 0, Precision::high);
  for (std::size_t i = 0; i < C.size(); ++i) EXPECT_LE(relative_error(C[i], A[i].matmul(B[i])), 0x1p-9) << i;
}

// Steps update momenta and parameters so. The sizes are within a tile of the kernel, beyond one, not of whole runs
// of 16 bytes, and too deep for it.
TEST(GemmOfBFloat16, UpdatesFP32MatricesOfEverySizeAndLayout) {
  for (const Sizes& s : {Sizes{1, 8, 8, 8}, Sizes{2, 130, 68, 64}, Sizes{1, 260, 140, 72}, Sizes{3, 136, 300, 136},
                         Sizes{2, 200, 256, 192}, Sizes{2, 24, 42, 16}, Sizes{2, 24, 40, 3}, Sizes{1, 300, 280, 264}}) {
    const at::Tensor A = normal({s.count, s.m, s.k}, 1, at::kBFloat16),
                     B = normal({s.count, s.n, s.k}, 2, at::kBFloat16), C = normal({s.count, s.m, s.n}, 3, at::kFloat);
    for (const Scalars& scalars : kScalars) {
      for (int form = 0; form < 8; ++form) {
        SCOPED_TRACE(testing::Message() << "count " << s.count << ", m " << s.m << ", n " << s.n << ", k " << s.k
                                        << ", beta " << scalars.beta << ", form " << form);
        const at::Tensor result = laid_out(C.clone(), form & 1), Bt = B.mT();
        const at::Tensor alpha = at::full({1}, scalars.alpha), beta = at::full({1}, scalars.beta);
        const auto factor = [&](double value, const at::Tensor& device) {
          return form & 2 ? Factor(device) : Factor(value);
        };
        const auto listed = [&](const at::Tensor& stack) {
          return form & 4 ? Matrices(stack.unbind(0)) : Matrices(stack);
        };
        gemm_(listed(result), listed(A), listed(Bt), factor(scalars.alpha, alpha), factor(scalars.beta, beta));
        expect_product(result, C, A, Bt, scalars, true);
      }
    }
  }
}

// A step that moves an entry by nothing leaves its last bit.
TEST(GemmOfBFloat16, LeavesWhatZerosAreAddedTo) {
  const at::Tensor A = normal({140, 16}, 1, at::kBFloat16),
                   B = normal({16, 150}, 2, at::kBFloat16).t().contiguous().t();
  A.slice(0, 20, 135).zero_();
  const at::Tensor C = normal({140, 152}, 3, at::kFloat).slice(1, 0, 150), before = C.clone();
  gemm_(Matrices(C), Matrices(A), Matrices(B), -1e-3, 1);
  EXPECT_TRUE(bitwise_equal(C.slice(0, 20, 135), before.slice(0, 20, 135)));
  EXPECT_FALSE(C.slice(0, 0, 20).eq(before.slice(0, 0, 20)).any().item<bool>());
}

TEST(GemmOfBFloat16, WritesNothingOutsideABlockOfALargerMatrix) {
  const at::Tensor A = normal({140, 24}, 1, at::kBFloat16), B = normal({150, 24}, 2, at::kBFloat16).t();
  const at::Tensor whole = normal({146, 164}, 3, at::kFloat), before = whole.clone();
  const at::Tensor inside = whole.slice(0, 3, 143).slice(1, 4, 154), was = inside.clone();
  gemm_(Matrices(inside), Matrices(A), Matrices(B), 0.5, -2);
  expect_product(inside, was, A, B, {0.5, -2}, true);
  inside.copy_(was);
  EXPECT_TRUE(bitwise_equal(whole, before));
}

TEST_P(Gemm, DoesNotReadCWhenBetaIsZero) {
  const Dtypes dtypes = GetParam();
  const at::Tensor A = normal({2, 140, 5}, 1, dtypes.A), B = normal({2, 5, 7}, 2, dtypes.B);
  for (bool by_columns : {false, true}) {
    const at::Tensor C = at::full({2, 140, 7}, std::numeric_limits<double>::quiet_NaN(), dtypes.C);
    const at::Tensor result = laid_out(C, by_columns);
    gemm_(Matrices(result), Matrices(A), Matrices(B), 1, 0);
    expect_product(result, C, A, B, {1, 0}, false);
  }
}

TEST_P(Gemm, WritesNothingOutsideABlockOfALargerMatrix) {
  const Dtypes dtypes = GetParam();
  for (const Sizes& s : {Sizes{1, 3, 5, 4}, Sizes{1, 260, 40, 33}}) {
    const at::Tensor A = normal({s.m, s.k}, 1, dtypes.A), B = normal({s.k, s.n}, 2, dtypes.B);
    for (const Scalars& scalars : kScalars) {
      const at::Tensor whole = normal({s.m + 3, s.n + 4}, 3, dtypes.C), before = whole.clone();
      const at::Tensor inside = whole.slice(0, 2, 2 + s.m).slice(1, 3, 3 + s.n);
      const at::Tensor was = inside.clone();
      gemm_(Matrices(inside), Matrices(A), Matrices(B), scalars.alpha, scalars.beta);
      expect_product(inside, was, A, B, scalars, true);
      inside.copy_(was);
      EXPECT_TRUE(at::equal(whole, before));
    }
  }
}

TEST_P(Gemm, TakesMatricesWithoutRowsOrColumns) {
  const Dtypes dtypes = GetParam();
  for (const auto& [m, n] : {std::pair{0, 5}, std::pair{5, 0}}) {
    const at::Tensor C = at::zeros({2, m, n}, dtypes.C);
    gemm_(Matrices(C), Matrices(normal({2, m, 3}, 1, dtypes.A)), Matrices(normal({2, 3, n}, 2, dtypes.B)), 2, 0.5);
    EXPECT_EQ(C.numel(), 0);
  }
}

std::string name_of(const Dtypes& dtypes) {
  const auto word = [](at::ScalarType dtype) { return std::string(c10::toString(dtype)); };
  return word(dtypes.C) + "_" + word(dtypes.A) + "_" + word(dtypes.B);
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, Gemm,
    testing::Values(Dtypes{at::kDouble, at::kDouble, at::kDouble}, Dtypes{at::kFloat, at::kFloat, at::kFloat},
                    Dtypes{at::kBFloat16, at::kBFloat16, at::kBFloat16}, Dtypes{at::kHalf, at::kHalf, at::kHalf},
                    Dtypes{at::kFloat, at::kBFloat16, at::kFloat}, Dtypes{at::kFloat, at::kFloat, at::kHalf},
                    Dtypes{at::kBFloat16, at::kFloat, at::kFloat}, Dtypes{at::kDouble, at::kFloat, at::kBFloat16},
                    Dtypes{at::kFloat, at::kDouble, at::kFloat}),
    [](const auto& info) { return name_of(info.param); });

TEST(Gemm, SumsHalfPrecisionProductsInSinglePrecision) {
  // 1 + 1000 · 2⁻¹¹ in BF16 operands: summed in BF16, the small terms would vanish one by one.
  const at::Tensor A = at::full({1, 1001}, 0x1p-11, at::kBFloat16), B = at::ones({1001, 1}, at::kBFloat16);
  A[0][0] = 1;
  const at::Tensor C = at::zeros({1, 1});
  gemm_(Matrices(C), Matrices(A), Matrices(B), 1, 0);
  EXPECT_EQ(C.item<double>(), 1 + 1000 * 0x1p-11);
}

// In every place of a C whose rows lie apart, and nowhere else.
TEST(Gemm, StoresFiniteSumsBeyondFP16AsItsLargestNumber) {
  for (at::ScalarType dtype : {at::kHalf, at::kFloat}) {
    for (bool by_columns : {false, true}) {
      const at::Tensor A = at::full({2, 70, 8}, 100.0, dtype), B = at::full({2, 8, 40}, 100.0, dtype);
      B.slice(2, 20).neg_();
      const at::Tensor wide = at::full({2, 70, 48}, 60000.0, at::kHalf);
      const at::Tensor C = by_columns ? column_major(wide.slice(2, 0, 40)) : wide.slice(2, 0, 40);
      gemm_(Matrices(C), Matrices(A), Matrices(B), 1, 0.5);
      EXPECT_TRUE(C.slice(2, 0, 20).eq(65504).all().item<bool>());
      EXPECT_TRUE(C.slice(2, 20).eq(-49984).all().item<bool>());  // 30000 − 80000, rounded
      gemm_(Matrices(C), Matrices(A), Matrices(B), 1, 0.5);
      EXPECT_TRUE(C.slice(2, 20).eq(-65504).all().item<bool>());
    }
  }
}

TEST(Gemm, LetsNaNAndInfinityThrough) {
  at::Tensor A = normal({3, 4}, 1), C = at::zeros({3, 5});
  A[1][2] = std::numeric_limits<double>::infinity();
  gemm_(Matrices(C), Matrices(A), Matrices(at::ones({4, 5})), 1, 0);
  EXPECT_TRUE(C[1].isinf().all().item<bool>());
  EXPECT_TRUE(C[0].isfinite().all().item<bool>());
}

}  // namespace

}  // namespace torchdion::linalg
