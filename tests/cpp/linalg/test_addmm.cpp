#include "linalg/gemm.h"

#include <gtest/gtest.h>

#include <limits>

#include "linalg/backend.h"
#include "linalg/cpu/bfloat16_products.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool is_cuda_emulated() { return precision_on(at::kCPU, Precision::high) == Precision::high; }

struct AddmmCase {
  at::ScalarType C, D, A, B;
  Precision precision;
};

// What operands are multiplied as.
at::Tensor read_as(const at::Tensor& operand, const AddmmCase& c) {
  if (is_cuda_emulated() && c.C == at::kHalf && c.precision != Precision::highest) {
    return operand.to(at::kHalf).to(at::kDouble);  // as C is stored
  }
  const bool in_double = compute_dtype({c.C, c.A, c.B}) == at::kDouble;
  const bool rounds = c.precision == Precision::medium && !in_double && c.A != at::kHalf && c.B != at::kHalf;
  return (rounds ? operand.to(at::kBFloat16) : operand).to(at::kDouble);
}

// C' = α A B + β D of rounded operands, up to a few roundings of FP32 and of what C is stored as.
void expect_addmm(const at::Tensor& actual, const at::Tensor& D, const at::Tensor& given_A, const at::Tensor& given_B,
                  double alpha, double beta, const AddmmCase& c) {
  const at::Tensor A = read_as(given_A, c), B = read_as(given_B, c);
  const at::Tensor exact = alpha * A.matmul(B), before = beta == 0 ? at::zeros_like(exact) : beta * D.to(at::kDouble);
  const at::Tensor expected = exact + before;
  const at::Tensor magnitude = std::abs(alpha) * A.abs().matmul(B.abs()) + before.abs();
  const at::ScalarType computing = compute_dtype({c.C, c.A, c.B});
  double sums = unit_roundoff(computing) * (6 + std::sqrt(static_cast<double>(A.size(-1))));
  // tensor cores may cut off what they do not read
  if (is_cuda_emulated() && c.precision == Precision::medium && computing == at::kFloat) sums = 0x1p-7;
  const double stored = unit_roundoff(actual.scalar_type());
  const at::Tensor allowed = magnitude * 2 * sums + (expected.abs() + before.abs()) * 2 * stored + 0x1p-120;
  const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
  EXPECT_TRUE(error.le(allowed).all().item<bool>())
      << "largest error over what is allowed: " << (error / allowed).max().item<double>();
}

// With the processor's BF16 products, or without.
class Addmm : public testing::TestWithParam<std::tuple<AddmmCase, bool>> {
 protected:
  void SetUp() override { before = cpu::exchange_bfloat16_products(std::get<1>(GetParam())); }
  void TearDown() override { cpu::exchange_bfloat16_products(before); }
  static const AddmmCase& given() { return std::get<0>(GetParam()); }

 private:
  bool before = true;
};

struct AddmmSizes {
  int64_t count, m, n, k;
};

// One row, one column, no rows, no inner entries, odd ones, and more than a tile, a chunk and a thread take.
const std::vector<AddmmSizes> kAddmmSizes = {{1, 1, 1, 1},     {2, 1, 7, 5},      {2, 6, 1, 5},    {1, 6, 7, 1},
                                             {2, 0, 5, 3},     {1, 9, 4, 0},      {3, 17, 33, 31}, {2, 64, 65, 33},
                                             {1, 130, 67, 96}, {1, 70, 129, 801}, {5, 20, 48, 64}, {2, 400, 330, 96}};

TEST_P(Addmm, IsTheProductAndTheOtherMatrixForEverySizeAndLayout) {
  const AddmmCase& c = given();
  for (const AddmmSizes& s : kAddmmSizes) {
    const at::Tensor A = normal({s.count, s.m, s.k}, 1, c.A), B = normal({s.count, s.k, s.n}, 2, c.B),
                     D = normal({s.count, s.m, s.n}, 3, c.D);
    for (int layout = 0; layout < 16; ++layout) {
      if (s.m * s.n * s.k > 100'000 && layout % 5 != 0) continue;
      SCOPED_TRACE(testing::Message() << s.count << " of " << s.m << "×" << s.n << "×" << s.k << ", layout " << layout);
      const at::Tensor C = laid_out(normal({s.count, s.m, s.n}, 4, c.C), layout & 8);
      addmm_(Matrices(C), Matrices(laid_out(D, layout & 4)), Matrices(laid_out(A, layout & 2)),
             Matrices(laid_out(B, layout & 1)), -0.5, 2, c.precision);
      expect_addmm(C, D, A, B, -0.5, 2, c);
    }
  }
}

TEST_P(Addmm, AddsToCItselfWhereThatIsTheOtherMatrix) {
  const AddmmCase& c = given();
  const at::Tensor A = normal({2, 70, 40}, 1, c.A), B = normal({2, 40, 90}, 2, c.B), C = normal({2, 70, 90}, 3, c.C);
  const at::Tensor before = C.clone();
  addmm_(Matrices(C), Matrices(C), Matrices(A), Matrices(B), 1.5, -1, c.precision);
  expect_addmm(C, before, A, B, 1.5, -1, c);
}

TEST_P(Addmm, WithoutBetaReadsNeitherCNorTheOtherMatrix) {
  const AddmmCase& c = given();
  const at::Tensor A = normal({2, 70, 5}, 1, c.A), B = normal({2, 5, 9}, 2, c.B);
  const at::Tensor C = at::full({2, 70, 9}, kNaN, c.C), D = at::full({2, 70, 9}, kNaN, c.D);
  addmm_(Matrices(C), Matrices(D), Matrices(A), Matrices(B), 1, 0, c.precision);
  expect_addmm(C, D, A, B, 1, 0, c);
}

TEST_P(Addmm, OfSymmetricMatricesIsTheWholeProduct) {
  const AddmmCase& c = given();
  if (c.A != c.B) return;  // else X Xᵀ is symmetric before it is rounded alone
  for (const auto& [count, n, k] : {std::tuple{2, 1, 3}, {2, 33, 40}, {1, 64, 20}, {2, 130, 70}, {1, 300, 65}}) {
    const at::Tensor X = normal({count, n, k}, 1, c.A), half = normal({count, n, n}, 2, c.D), D = half + half.mT();
    for (int layout = 0; layout < 4; ++layout) {
      for (double beta : {0.0, 2.0}) {
        SCOPED_TRACE(testing::Message() << "n " << n << ", layout " << layout << ", beta " << beta);
        const at::Tensor C = laid_out(at::full({count, n, n}, kNaN, c.C), layout & 2), x = laid_out(X, layout & 1);
        addmm_(Matrices(C), Matrices(D), Matrices(x), Matrices(x.mT()), 0.5, beta, c.precision, /*symmetric=*/true);
        expect_addmm(C, D, X, X.mT(), 0.5, beta, c);
        EXPECT_TRUE(is_cuda_emulated() || relative_error(C, C.mT()) <= 1e-6);
      }
    }
  }
}

TEST_P(Addmm, AddsToASymmetricCItself) {
  const AddmmCase& c = given();
  if (c.A != c.B) return;
  const at::Tensor X = normal({1, 200, 50}, 1, c.A), half = normal({1, 200, 200}, 2, c.C), C = half + half.mT();
  const at::Tensor before = C.clone();
  addmm_(Matrices(C), Matrices(C), Matrices(X), Matrices(X.mT()), -1, 3, c.precision, /*symmetric=*/true);
  expect_addmm(C, before, X, X.mT(), -1, 3, c);
}

TEST_P(Addmm, WritesNothingOutsideABlockOfALargerMatrix) {
  const AddmmCase& c = given();
  for (bool symmetric : {false, true}) {
    if (symmetric && c.A != c.B) continue;
    const at::Tensor A = normal({70, 40}, 1, c.A), B = symmetric ? A.mT() : normal({40, 70}, 2, c.B);
    const at::Tensor whole = normal({75, 76}, 3, c.C), before = whole.clone();
    const at::Tensor inside = whole.slice(0, 2, 72).slice(1, 3, 73), was = inside.clone();
    addmm_(Matrices(inside), Matrices(inside), Matrices(A), Matrices(B), 2, 0, c.precision, symmetric);
    expect_addmm(inside, was, A, B, 2, 0, c);
    inside.copy_(was);
    EXPECT_TRUE(at::equal(whole, before));
  }
}

TEST_P(Addmm, LetsNaNAndInfinityThrough) {
  const AddmmCase& c = given();
  for (double hostile : {kNaN, kInfinity, -kInfinity}) {
    if (std::isinf(hostile) && c.C == at::kHalf && is_cuda_emulated()) continue;  // which stores its largest number
    const at::Tensor A = normal({70, 40}, 1).abs().to(c.A), B = normal({40, 80}, 2).abs().add(0.1).to(c.B);
    const at::Tensor C = at::zeros({70, 80}, c.C), D = at::zeros({70, 80}, c.D);
    A[66][33] = hostile;
    addmm_(Matrices(C), Matrices(D), Matrices(A), Matrices(B), 1, 1, c.precision);
    EXPECT_TRUE(at::allclose(C[66], at::full({80}, hostile, c.C), 0, 0, /*equal_nan=*/true)) << hostile;
    EXPECT_TRUE(C.slice(0, 0, 66).isfinite().all().item<bool>());
    EXPECT_TRUE(C.slice(0, 67).isfinite().all().item<bool>());
  }
}

std::string name_of(const AddmmCase& c) {
  const auto word = [](at::ScalarType dtype) { return std::string(c10::toString(dtype)); };
  const char* const precisions[] = {"highest", "high", "medium"};
  return word(c.C) + "_" + word(c.D) + "_" + word(c.A) + "_" + word(c.B) + "_" +
         precisions[static_cast<int>(c.precision)];
}

constexpr at::ScalarType kSingle = at::kFloat, kBrain = at::kBFloat16;
constexpr AddmmCase kFloatAtMedium{kSingle, kSingle, kSingle, kSingle, Precision::medium};

INSTANTIATE_TEST_SUITE_P(
    Cases, Addmm,
    testing::Combine(testing::Values(AddmmCase{at::kDouble, at::kDouble, at::kDouble, at::kDouble, Precision::medium},
                                     AddmmCase{kSingle, kSingle, kSingle, kSingle, Precision::highest}, kFloatAtMedium,
                                     AddmmCase{kBrain, kBrain, kBrain, kBrain, Precision::highest},
                                     AddmmCase{kSingle, kBrain, kBrain, kBrain, Precision::highest},
                                     AddmmCase{kBrain, kSingle, kBrain, kSingle, Precision::medium},
                                     AddmmCase{at::kHalf, at::kHalf, kSingle, kSingle, Precision::medium},
                                     AddmmCase{at::kHalf, at::kHalf, at::kHalf, at::kHalf, Precision::highest}),
                     testing::Bool()),
    [](const auto& info) {
      return name_of(std::get<0>(info.param)) + (std::get<1>(info.param) ? "" : "_without_instructions");
    });

// Those of the processor, which emulated GPUs have nothing of.
class Bfloat16Products : public testing::Test {
 protected:
  void SetUp() override {
    if (is_cuda_emulated()) GTEST_SKIP() << "of the operations on CPUs";
    threads = at::get_num_threads();
  }
  void TearDown() override { at::set_num_threads(threads); }

  int threads = 1;
};

TEST_F(Bfloat16Products, HaveTheSameBitsOnAnyNumberOfThreadsAndInAnyList) {
  for (const auto& [m, n, k] : {std::tuple{300, 450, 801}, {450, 450, 450}, {70, 70, 33}}) {
    const at::Tensor A = normal({5, m, k}, 1, at::kFloat), B = normal({5, k, n}, 2, at::kFloat);
    for (bool symmetric : {false, true}) {
      if (symmetric && m != n) continue;
      const at::Tensor right = symmetric ? A.mT() : B;
      at::set_num_threads(1);
      const at::Tensor expected = at::empty({5, m, n});
      addmm_(Matrices(expected), Matrices(expected), Matrices(A), Matrices(right), 1, 0, Precision::medium, symmetric);
      for (int count : {1, 2, 5}) {
        for (int with : {1, 2, 3}) {
          at::set_num_threads(with);
          const at::Tensor C = at::empty({count, m, n}), a = A.slice(0, 0, count), b = right.slice(0, 0, count);
          addmm_(Matrices(C), Matrices(C), Matrices(a), Matrices(b), 1, 0, Precision::medium, symmetric);
          EXPECT_TRUE(bitwise_equal(C, expected.slice(0, 0, count))) << m << ", " << count << " on " << with;
        }
      }
    }
  }
}

// More columns than are packed at once.
TEST_F(Bfloat16Products, TakeWideMatricesInPieces) {
  const at::Tensor A = normal({40, 4100}, 1, at::kFloat), B = normal({4100, 1100}, 2, at::kFloat),
                   C = at::empty({40, 1100});
  addmm_(Matrices(C), Matrices(C), Matrices(A), Matrices(B), 1, 0, Precision::medium);
  expect_addmm(C, C, A, B, 1, 0, kFloatAtMedium);
  const at::Tensor X = normal({1100, 4100}, 3, at::kFloat), H = at::empty({1100, 1100});
  addmm_(Matrices(H), Matrices(H), Matrices(X), Matrices(X.mT()), 1, 0, Precision::medium, /*symmetric=*/true);
  expect_addmm(H, H, X, X.mT(), 1, 0, kFloatAtMedium);
}

TEST_F(Bfloat16Products, OfNumbersBeyondBFloat16TakeItsLargest) {
  const float largest = std::numeric_limits<float>::max(), kept = std::numeric_limits<at::BFloat16>::max();
  const at::Tensor A = at::full({20, 20}, 0.0), B = at::eye(20);
  A.fill_diagonal_(largest);
  A[1][1] = -largest;
  for (bool instructions : {true, false}) {
    const bool before = cpu::exchange_bfloat16_products(instructions);
    for (bool by_columns : {false, true}) {
      const at::Tensor C = at::empty({20, 20});
      addmm_(Matrices(C), Matrices(C), Matrices(laid_out(A.to(at::kFloat), by_columns)), Matrices(B), 1, 0,
             Precision::medium);
      EXPECT_EQ(C[0][0].item<float>(), kept);
      EXPECT_EQ(C[1][1].item<float>(), -kept);
    }
    cpu::exchange_bfloat16_products(before);
  }
}

// What rounding leaves unlike on both sides of the diagonal is that below it.
TEST_F(Bfloat16Products, OfWhatIsTakenForSymmetricAreSymmetricInEveryBit) {
  const at::Tensor A = normal({200, 60}, 1, at::kFloat), B = normal({60, 200}, 2, at::kFloat);
  for (Precision precision : {Precision::highest, Precision::medium}) {
    const at::Tensor whole = at::empty({200, 200}), C = at::empty({200, 200});
    addmm_(Matrices(whole), Matrices(whole), Matrices(A), Matrices(B), 1, 0, precision);
    addmm_(Matrices(C), Matrices(C), Matrices(A), Matrices(B), 1, 0, precision, /*symmetric=*/true);
    EXPECT_TRUE(bitwise_equal(C, C.mT()));
    EXPECT_LE(relative_error(C.tril(), whole.tril()), 1e-6);
  }
}

// Where both are there, they differ in the order of sums alone.
TEST_F(Bfloat16Products, AreThoseOfRoundedOperandsWithoutInstructions) {
  const at::Tensor A = normal({130, 500}, 1, at::kFloat), B = normal({500, 140}, 2, at::kFloat);
  const at::Tensor with = at::empty({130, 140}), without = at::empty({130, 140});
  const bool before = cpu::exchange_bfloat16_products(true);
  addmm_(Matrices(with), Matrices(with), Matrices(A), Matrices(B), 1, 0, Precision::medium);
  cpu::exchange_bfloat16_products(false);
  addmm_(Matrices(without), Matrices(without), Matrices(A), Matrices(B), 1, 0, Precision::medium);
  cpu::exchange_bfloat16_products(before);
  EXPECT_LE(relative_error(with, without), 1e-6);
  const at::Tensor full = at::empty({130, 140});
  addmm_(Matrices(full), Matrices(full), Matrices(A), Matrices(B), 1, 0, Precision::high);
  EXPECT_GE(relative_error(with, full), 1e-3);  // of 2⁻⁹ to 2⁻⁸ each
  EXPECT_LE(relative_error(full, A.to(at::kDouble).matmul(B.to(at::kDouble))), 1e-6);
}

}  // namespace

}  // namespace torchdion::linalg
