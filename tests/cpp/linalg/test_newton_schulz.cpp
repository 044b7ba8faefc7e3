#include "linalg/newton_schulz.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linalg/cpu/bfloat16_products.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

enum class Kind { jordan, polar_express, on_gram };
constexpr Kind kKinds[] = {Kind::jordan, Kind::polar_express, Kind::on_gram};

NewtonSchulzSteps steps_of(Kind kind, int64_t count, bool in_half = false) {
  if (kind == Kind::jordan) return {std::vector<Quintic>(count, kJordan)};
  const double slack = in_half && kind == Kind::on_gram ? kHalfGramSlack : kPolarExpressSlack;
  return {polar_express(count, slack), kPolarExpressSlack, kind == Kind::on_gram};
}

// The same polynomials of singular values that a decomposition gives.
at::Tensor by_singular_values(const at::Tensor& X, const NewtonSchulzSteps& steps) {
  const auto [U, singular, Vh] = at::linalg_svd(X.to(at::kDouble), /*full_matrices=*/false);
  at::Tensor x = singular / (singular.square().sum(-1, /*keepdim=*/true).sqrt() * steps.slack);
  for (const Quintic& p : steps.polynomials) x = x * (p.a + x.square() * (p.b + x.square() * p.c));
  return U.matmul(x.unsqueeze(-1) * Vh);
}

double distance(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

struct Shape {
  int64_t m, n;
};

class NewtonSchulzOf : public testing::TestWithParam<std::tuple<Kind, Shape, int64_t>> {};

TEST_P(NewtonSchulzOf, AppliesThePolynomialsToSingularValues) {
  const auto [kind, shape, count] = GetParam();
  const NewtonSchulzSteps steps = steps_of(kind, count);
  const at::Tensor X = normal({3, shape.m, shape.n}, 1, at::kDouble);
  const at::Tensor expected = by_singular_values(X, steps);
  EXPECT_LE(distance(newton_schulz(X.clone(), steps, Precision::highest), expected), 1e-12);
  EXPECT_LE(distance(newton_schulz(X.to(at::kFloat), steps, Precision::highest), expected), 2e-5);
  // Polynomials are steepest at the largest singular value, and a matrix of one row or column has no other.
  const double bound = std::min(shape.m, shape.n) == 1 ? 0.7 : 0.12;
  const NewtonSchulzSteps in_half = steps_of(kind, count, /*in_half=*/true);
  EXPECT_LE(distance(newton_schulz(X.to(at::kBFloat16), in_half, Precision::medium), by_singular_values(X, in_half)),
            bound);
}

INSTANTIATE_TEST_SUITE_P(KindsShapesAndSteps, NewtonSchulzOf,
                         testing::Combine(testing::ValuesIn(kKinds),
                                          testing::Values(Shape{8, 8}, Shape{24, 6}, Shape{7, 31}, Shape{1, 5},
                                                          Shape{5, 1}, Shape{1, 1}),
                                          testing::Values(int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, int64_t{8})));

// Rounded to BF16, the iterations on Gram matrices stay as close to their polynomials as those on X itself: also where
// singular values fall off, most of them are zero, or one outweighs the others; and for small matrices, whose rounding
// does not average out.
TEST(NewtonSchulzSteps, OnGramMatricesInBF16AreAboutAsExactAsOneByOne) {
  for (const auto& [p, n] : {std::pair(4, 4), {8, 8}, {8, 32}, {96, 384}}) {
    const int64_t count = p < 96 ? 64 : 1;
    const at::Tensor flat = normal({count, p, n}, 4, at::kDouble), left = normal({count, p, p}, 5, at::kDouble),
                     falling = at::arange(1, p + 1, at::kDouble).reciprocal();
    const at::Tensor low = left.slice(2, 0, p / 4).matmul(flat.slice(1, 0, p / 4));
    const at::Tensor spike = flat + 30 * normal({count, p, 1}, 6, at::kDouble) * normal({count, 1, n}, 7, at::kDouble);
    for (const at::Tensor& X : {flat, (left * falling).matmul(flat), low, spike}) {
      for (const int64_t steps : {5, 7, 8}) {
        const NewtonSchulzSteps each = steps_of(Kind::polar_express, steps),
                                on_gram = steps_of(Kind::on_gram, steps, /*in_half=*/true);
        const at::Tensor rounded = X.to(at::kBFloat16);
        const double of_each =
            distance(newton_schulz(rounded.clone(), each, Precision::medium), by_singular_values(X, each));
        EXPECT_LE(distance(newton_schulz(rounded.clone(), on_gram, Precision::medium), by_singular_values(X, on_gram)),
                  std::max(0.12, 1.5 * of_each))
            << p << "×" << n << ", " << steps << " steps";
      }
    }
  }
}

// Rounded to TF32, where tensor cores are emulated; groups of three come with more than five steps.
TEST(NewtonSchulzSteps, OnGramMatricesAtHighDoNotDivergeForAnyNumberOfSteps) {
  for (const auto& [p, n] : {std::pair(4, 4), {8, 8}, {8, 32}}) {
    const at::Tensor falling = at::arange(1, p + 1, at::kDouble).reciprocal();
    const at::Tensor X = (normal({512, p, p}, 8, at::kDouble) * falling).matmul(normal({512, p, n}, 9, at::kDouble));
    for (const int64_t count : {5, 8, 11}) {
      const NewtonSchulzSteps steps = steps_of(Kind::on_gram, count);
      const at::Tensor found = newton_schulz(X.to(at::kFloat), steps, Precision::high);
      EXPECT_LE(distance(found, by_singular_values(X, steps)), 0.05) << p << "×" << n << ", " << count << " steps";
    }
  }
}

TEST(NewtonSchulzSteps, LeaveZerosZeroAndNaNWhereItIs) {
  for (const Kind kind : kKinds) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      at::Tensor X = normal({3, 6, 4}, 2).to(dtype);
      X[1].zero_();
      X[2][3][1] = std::numeric_limits<double>::quiet_NaN();
      const at::Tensor U = newton_schulz(X, steps_of(kind, 5), Precision::highest);
      EXPECT_TRUE(U[0].isfinite().all().item<bool>());
      EXPECT_EQ(U[1].abs().max().item<double>(), 0);
      EXPECT_TRUE(U[2].isnan().all().item<bool>());
    }
  }
}

// Whichever thread takes a matrix, and with which others: an owner's matrices are other ones on every layout.
TEST(NewtonSchulzSteps, GiveTheSameBitsOnAnyNumberOfThreadsAndInAnyList) {
  if (is_cuda_emulated()) GTEST_SKIP() << "of the operations on CPUs";
  if (!cpu::has_bfloat16_products()) GTEST_SKIP() << "of products by BLAS, which rounds by the threads around it";
  const int threads = at::get_num_threads();
  for (const auto& [m, n] : {std::pair(8, 24), {160, 640}, {480, 320}, {600, 600}}) {
    const at::Tensor X = normal({5, m, n}, 2, at::kBFloat16);
    for (const Kind kind : kKinds) {
      for (const int64_t steps : {4, 5}) {
        at::set_num_threads(1);
        const auto iterated = [&](int64_t count) {
          return newton_schulz(X.slice(0, 0, count).clone(), steps_of(kind, steps, /*in_half=*/true),
                               Precision::medium);
        };
        const at::Tensor expected = iterated(5);
        for (const int with : {2, 3}) {
          at::set_num_threads(with);
          for (const int64_t count : {1, 2, 5}) {
            EXPECT_TRUE(bitwise_equal(iterated(count), expected.slice(0, 0, count)))
                << count << " of " << m << "×" << n << " on " << with << " threads";
          }
        }
        at::set_num_threads(threads);
      }
    }
  }
}

TEST(NewtonSchulzSteps, DoNotDependOnTheScale) {
  const at::Tensor X = normal({1, 6, 4}, 3, at::kDouble);
  const NewtonSchulzSteps steps = steps_of(Kind::polar_express, 5);
  const at::Tensor expected = newton_schulz(X.clone(), steps, Precision::highest);
  for (const double scale : {1e-30, 1e30}) {
    EXPECT_LE(distance(newton_schulz((X * scale).to(at::kFloat), steps, Precision::highest), expected), 1e-5) << scale;
  }
  for (const double scale : {1e-130, 1e130}) {
    EXPECT_LE(distance(newton_schulz(X * scale, steps, Precision::highest), expected), 1e-12) << scale;
  }
}

TEST(PolarExpress, HasThePublishedCoefficientsForFiveSteps) {
  const Quintic published[] = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                               {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                               {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                               {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                               {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  const std::vector<Quintic> found = polar_express(5);
  ASSERT_EQ(found.size(), 5u);
  for (std::size_t k = 0; k < 5; ++k) {
    EXPECT_NEAR(found[k].a, published[k].a, 1e-12);
    EXPECT_NEAR(found[k].b, published[k].b, 1e-12);
    EXPECT_NEAR(found[k].c, published[k].c, 1e-12);
  }
}

TEST(PolarExpress, BringsSingularValuesCloserToOneWithEveryStep) {
  double before = 1;
  for (const int64_t steps : {1, 2, 3, 4, 5, 6, 8, 12, 40}) {
    double worst = 0;
    for (double x = 1e-3; x <= 1 / kPolarExpressSlack; x += 1e-3) {
      double value = x;
      for (const Quintic& p : polar_express(steps)) value = p(value);
      worst = std::max(worst, std::abs(1 - value));
    }
    EXPECT_LE(worst, steps <= 6 ? before * 0.999 : 0.02) << steps;
    before = worst;
  }
}

TEST(NewtonSchulzOperations, AreFewerOnGramMatricesOfWideOnes) {
  const NewtonSchulzSteps each = steps_of(Kind::polar_express, 5), on_gram = steps_of(Kind::on_gram, 5);
  EXPECT_EQ(newton_schulz_operations(3, 3, each, at::kFloat), 5 * (4 * 27 + 2 * 27));
  EXPECT_EQ(newton_schulz_operations(4, 2, each, at::kFloat), newton_schulz_operations(2, 4, each, at::kFloat));
  EXPECT_EQ(newton_schulz_operations(2, 4, each, at::kBFloat16), 5 * (4 * 16 + 2 * 8));
  EXPECT_EQ(newton_schulz_operations(2, 4, on_gram, at::kFloat), 2 * (4 * 16) + (5 + 9) * (2 * 8));
  EXPECT_EQ(newton_schulz_operations(2, 4, on_gram, at::kBFloat16), 3 * (4 * 16) + (5 + 5 + 1) * (2 * 8));
  const NewtonSchulzSteps eight = steps_of(Kind::on_gram, 8);
  EXPECT_EQ(newton_schulz_operations(2, 4, eight, at::kFloat), 3 * (4 * 16) + (5 + 9 + 9) * (2 * 8));
  EXPECT_EQ(newton_schulz_operations(2, 4, eight, at::kBFloat16), 4 * (4 * 16) + 4 * 5 * (2 * 8));
}

}  // namespace

}  // namespace torchdion::linalg
