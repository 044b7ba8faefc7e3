#include "linalg/triangular_inverse.h"

#include <gtest/gtest.h>

#include "linalg/backend.h"
#include "linalg/whole_factor.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

struct StackSize {
  int64_t count, m, r;
};

class MultiplyTriangular : public testing::TestWithParam<StackSize> {};

TEST_P(MultiplyTriangular, EqualsTheProductOfPTheScalesAndTheTriangle) {
  const auto [count, m, r] = GetParam();
  for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor scale = normal({count, r}, 1), inverse = normal({count, r, r}, 2, dtype).triu();
    const at::Tensor P = normal({count, m, r}, 3, dtype);
    const at::Tensor scaled = P.to(at::kDouble) * scale.unsqueeze(1), triangle = inverse.to(at::kDouble);
    if (backend_of(at::kCPU).multiplies_in_place) {
      multiply_triangular_(Matrices(P), Matrices(P), {scale, inverse});
    } else {
      multiply_triangular_(Matrices(P), Matrices(P.clone()), {{}, (scale.unsqueeze(2) * triangle).to(dtype)});
    }
    const at::Tensor magnitude = scaled.abs().matmul(triangle.abs());
    const double rounding = unit_roundoff(dtype) * static_cast<double>(r + 4) * 2;
    EXPECT_TRUE((P.to(at::kDouble) - scaled.matmul(triangle)).abs().le(magnitude * rounding).all().item<bool>())
        << dtype;
  }
}

// A CPU multiplies 192 rows by 96 columns at a time.
INSTANTIATE_TEST_SUITE_P(Sizes, MultiplyTriangular,
                         testing::Values(StackSize{1, 1, 1}, StackSize{3, 5, 1}, StackSize{2, 4, 7},
                                         StackSize{1, 200, 30}, StackSize{2, 500, 97}, StackSize{1, 193, 200}));

class CholeskyInverse : public testing::TestWithParam<int64_t> {};

TEST_P(CholeskyInverse, InvertsTheFactorThatLapackFinds) {
  const int64_t r = GetParam(), m = 3 * r, count = 2;
  const at::Tensor scales = at::logspace(-12, 12, r, 10, at::kDouble);
  const at::Tensor P = normal({count, m, r}, 1) * scales;
  const at::Tensor H = P.mT().matmul(P).contiguous();
  CholeskyPass pass{.rows = m, .dtype = at::kDouble, .given = Noise{.own = 1e-9}};
  const TriangularInverse factor = cholesky_inverse(H.clone(), pass);

  const at::Tensor norms = H.diagonal(0, -2, -1).sqrt();
  const at::Tensor inverse = norms.unsqueeze(2) * whole_factor(factor);
  EXPECT_TRUE(at::equal(inverse, inverse.triu()));
  const at::Tensor unit = H / norms.unsqueeze(1) / norms.unsqueeze(2);
  const at::Tensor R = at::linalg_cholesky(unit).mT();
  const at::Tensor expected = at::linalg_solve_triangular(R, at::eye(r, at::kDouble).expand_as(R), /*upper=*/true);
  EXPECT_LE(relative_error(inverse, expected), 1e-12);
  // An orthonormal column is made of unit columns, whose noise adds up as independent errors do.
  const at::Tensor amplification = at::linalg_vector_norm(inverse, 2, {1});
  EXPECT_LE(relative_error(pass.noise, 1e-9 * amplification), 1e-12);
  for (std::size_t i = 0; i < factor.amplification.size(); ++i) {
    EXPECT_NEAR(factor.amplification[i], amplification[static_cast<int64_t>(i)].max().item<double>(), 1e-12);
  }
}

TEST_P(CholeskyInverse, WeightsTheNoiseOfEveryColumnWithItsShareInTheOrthonormalOnes) {
  const int64_t r = GetParam(), m = 3 * r;
  const at::Tensor spread = at::logspace(-3, 3, r, 10, at::kDouble);
  const at::Tensor P = normal({2, m, r}, 1) * at::stack({spread, spread.flip(0).sqrt()}).unsqueeze(1);
  const at::Tensor H = P.mT().matmul(P).contiguous(), norms = H.diagonal(0, -2, -1).sqrt();
  const Noise given{.own = 1e-9, .mean = 1e-8};
  CholeskyPass pass{.rows = m, .dtype = at::kDouble, .given = given};
  const at::Tensor inverse = norms.unsqueeze(2) * whole_factor(cholesky_inverse(H.clone(), pass));
  const at::Tensor shares = inverse * relative_noise(norms, given).unsqueeze(2);
  EXPECT_LE((pass.noise / at::linalg_vector_norm(shares, 2, {1}) - 1).abs().max().item<double>(), 1e-9);
}

// The columns are factored 32 at a time on the CPU; on a GPU 64 at a time, 512 in a launch.
INSTANTIATE_TEST_SUITE_P(Sizes, CholeskyInverse, testing::Values(1, 2, 3, 32, 33, 60, 64, 65, 131, 400, 530));

// The columns, all orthogonal, that are longer than the rest of their noise after those before them.
at::Tensor longer_than_noise(const at::Tensor& noise, int64_t rows) {
  const at::Tensor alive = at::zeros(noise.sizes(), at::kBool);
  for (int64_t i = 0; i < noise.size(0); ++i) {
    double live = 0;
    for (int64_t j = 0; j < noise.size(1); ++j) {
      const double root = std::sqrt(static_cast<double>(rows) - live);
      const bool is_longer = noise[i][j].item<double>() * (root + 2) < std::sqrt(static_cast<double>(rows));
      alive[i][j] = is_longer;
      if (is_longer) live += 1;
    }
  }
  return alive;
}

TEST(CholeskyInverse, OfOrthogonalColumnsHasTheNoiseOfTheirLengthsAndNoneThatIsAllNoise) {
  const Noise noise{.own = 1e-7, .mean = 1e-5};
  for (int64_t r : {1, 7, 129, 257}) {
    const at::Tensor spread = at::logspace(-9, 9, r, 10, at::kDouble);
    const at::Tensor lengths = at::stack({spread, spread.flip(0), at::ones({r}, at::kDouble)});
    if (r > 1) lengths.select(1, r / 2).zero_();
    CholeskyPass pass{.rows = r, .dtype = at::kDouble, .given = noise};
    const at::Tensor factor = whole_factor(cholesky_inverse(at::diag_embed(lengths.square()), pass));
    const at::Tensor expected = relative_noise(lengths, noise), alive = longer_than_noise(expected, r);
    EXPECT_LE(relative_error(pass.noise.masked_select(alive), expected.masked_select(alive)), 1e-12) << r;
    EXPECT_TRUE(pass.noise.ge(0.999 * expected).all().item<bool>()) << r;
    EXPECT_LE(relative_error(factor, at::diag_embed(alive / lengths.masked_fill(alive.logical_not(), 1))), 1e-15) << r;
  }
}

// But for a common power of two.
TEST(CholeskyInverse, HoldsTheFactorOfColumnsWhoseLengthsAreFarApart) {
  for (double square : {0x1p-298, 0x1p-250, 0x1p-90, 0x1p+90, 0x1p+250}) {
    const at::Tensor H = at::diag_embed(at::tensor({1.0, square, 4.0})).unsqueeze(0);
    CholeskyPass pass{.rows = 9, .dtype = at::kFloat, .given = Noise{}};
    const at::Tensor factor = whole_factor(cholesky_inverse(H, pass));
    EXPECT_TRUE(factor.isfinite().all().item<bool>()) << square;
    const double common = factor[0][0][0].item<double>();
    EXPECT_EQ(std::log2(common), std::round(std::log2(common))) << square;
    EXPECT_TRUE(at::equal(factor[0].diagonal(), common * at::tensor({1.0, 1 / std::sqrt(square), 0.5}))) << square;
  }
}

// Its pivot is rounding alone, but it is not said to be noise: later passes will see it clearly.
TEST(CholeskyInverse, KeepsAColumnThatRoundingHidesOutOfThoseAfterIt) {
  for (int64_t hidden : {5, 63, 64, 70}) {
    const at::Tensor P = normal({1, 200, 140}, 1);
    P[0].select(1, hidden).mul_(1e-9).add_(P[0].select(1, 4));
    const at::Tensor H = P.mT().matmul(P).contiguous();
    int64_t without_signal = 0;
    CholeskyPass pass{.rows = 200, .dtype = at::kDouble, .given = Noise{.own = 1e-16}, .counts = {&without_signal}};
    const at::Tensor row = whole_factor(cholesky_inverse(H, pass))[0][hidden];
    EXPECT_GT(row[hidden].item<double>(), 0) << hidden;
    EXPECT_EQ(without_signal, 0) << hidden;
    EXPECT_EQ(row.slice(0, hidden + 1).count_nonzero().item<int64_t>(), 0) << hidden;
  }
}

// A first pass may have left a column of noise orthogonal to all others: to be so is no signal.
TEST(CholeskyInverse, DropsNoiseAlsoOfOrthonormalColumns) {
  for (const int64_t r : {1, 7, 70}) {
    const at::Tensor noise = at::full({1, r}, 1e-6, at::kDouble);
    noise[0][r / 2] = 5;
    int64_t without_signal = 0;
    CholeskyPass pass{.noise = noise, .rows = 100, .dtype = at::kFloat, .precision = Precision::high};
    pass.counts.without_signal = &without_signal;
    const at::ScalarType sums = backend_of(at::kCPU).sum_dtype(at::kFloat, Precision::high);
    const at::Tensor factor = whole_factor(cholesky_inverse(at::eye(r, sums).unsqueeze(0), pass))[0];
    EXPECT_EQ(without_signal, 1) << r;
    EXPECT_EQ(factor.select(1, r / 2).count_nonzero().item<int64_t>(), 0) << r;
    EXPECT_EQ(factor.count_nonzero().item<int64_t>(), r - 1) << r;
  }
}

// After a first pass a GPU takes the upper triangle of what is left for the factor, where its square is rounding.
TEST(CholeskyInverse, OfNearlyOrthonormalColumnsIsOfFirstOrderWhereThatIsExactEnough) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  for (int64_t r : {1, 7, 64, 130, 520}) {
    for (const auto& [precision, dtype, rounding] :
         {std::tuple{Precision::high, at::kFloat, 0x1p-12}, std::tuple{Precision::medium, at::kBFloat16, 0x1p-9}}) {
      const at::Tensor off = normal({r, r}, 1).triu(1), symmetric = off + off.mT();
      const double longest = at::linalg_vector_norm(symmetric, 2, {1}).max().item<double>();
      for (const bool is_near : {true, false}) {
        // Of other lengths, and one column without signal.
        const double distance = std::sqrt(rounding / 2) * (is_near ? 0.9 : 8);
        const at::Tensor lengths = 1 + 0.1 * normal({r}, 2).clamp(-3, 3);
        at::Tensor H = at::eye(r, at::kDouble) + (r > 1 ? symmetric * (distance / longest) : symmetric);
        H = H * lengths * lengths.unsqueeze(1);
        if (r > 1) H.select(0, r / 2).copy_(H.select(1, r / 2).zero_());
        int64_t without_signal = 0;
        CholeskyPass pass{.noise = at::full({1, r}, 1e-6, at::kDouble), .rows = r, .dtype = dtype};
        pass.precision = precision;
        pass.counts.without_signal = &without_signal;
        const TriangularInverse factor = cholesky_inverse(H.to(at::kFloat).unsqueeze(0), pass);
        const at::Tensor T = factor.inverse[0].to(at::kDouble) + factor.rest[0].to(at::kDouble);
        at::Tensor error = T.mT().matmul(H).matmul(T) - at::eye(r, at::kDouble);
        if (r > 1) error[r / 2][r / 2] += 1;
        const double found = error.abs().max().item<double>();
        EXPECT_LE(found, is_near ? rounding : 2e-5) << r << (is_near ? ", near" : "");
        EXPECT_EQ(without_signal, r > 1 ? 1 : 0);
        EXPECT_TRUE(at::equal(T, T.triu()));
        if (r < 100) continue;
        const at::Tensor scale = H.diagonal().rsqrt().masked_fill(H.diagonal().eq(0), 0);
        const at::Tensor first_order = at::diag(scale) - (H * scale * scale.square().unsqueeze(1)).triu(1);
        EXPECT_EQ((T - first_order).abs().max().item<double>() < 1e-4, is_near) << r;
      }
    }
  }
}

}  // namespace

}  // namespace torchdion::linalg
