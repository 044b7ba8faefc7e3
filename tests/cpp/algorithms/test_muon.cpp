#include "algorithms/table.h"

#include <ATen/ops/linalg_svd.h>
#include <gtest/gtest.h>

#include <limits>

#include "algorithms/batch.h"
#include "algorithms/options_by_name.h"
#include "comm/scheduler.h"
#include "tensors.h"

namespace torchdion::algorithms {

namespace {

using linalg::Matrices;

constexpr double kLr = 0.125, kMu = 0.75, kDecay = 0.5;

struct OfMuon {
  at::Tensor X, G, M;
};

OfMuon drawn(int64_t count, int64_t m, int64_t n, at::ScalarType dtype) {
  return {normal({count, m, n}, 1, dtype), normal({count, m, n}, 2, dtype), normal({count, m, n}, 3, dtype)};
}

OfMuon copy_of(const OfMuon& p) { return {p.X.clone(), p.G.clone(), p.M.clone()}; }

Options muon_options(NamedValues values) {
  Options options = options_of(kMuon, values);
  options.set("lr", kLr);
  options.set("mu", kMu);
  options.set("weight_decay", kDecay);
  return options;
}

Batch muon_batch(const OfMuon& p, const Options& options) {
  Batch batch;
  batch.X = Matrices(p.X);
  batch.G = Matrices(p.G);
  batch.states = {Matrices(p.M)};
  const int64_t count = p.X.size(0), m = p.X.size(1), n = p.X.size(2);
  batch.shape = {.count = count,
                 .numel = p.X.numel(),
                 .m = m,
                 .n = n,
                 .rows = m,
                 .cols = n,
                 .owners = {{count}, {count}, {count}, {count}},
                 .parameter = p.X.scalar_type(),
                 .computing = linalg::compute_dtype({batch.X.dtype}),
                 .states = {p.M.scalar_type()}};
  batch.factors.shape_factor = std::sqrt(static_cast<double>(m) / static_cast<double>(n));
  batch.workspace = at::empty({kMuon.cost(batch.shape, {}, options).workspace}, batch.shape.computing);
  return batch;
}

// Jordan's polynomial, five times, of the singular values of L / ‖L‖.
at::Tensor orthonormalized(const at::Tensor& L) {
  const auto [U, singular, Vh] = at::linalg_svd(L.to(at::kDouble), /*full_matrices=*/false);
  at::Tensor x = singular / singular.square().sum(-1, /*keepdim=*/true).sqrt();
  for (int k = 0; k < 5; ++k) x = x * (3.4445 + x.square() * (-4.7750 + x.square() * 2.0315));
  return U.matmul(x.unsqueeze(-1) * Vh);
}

class Muon : public testing::TestWithParam<std::tuple<bool, bool, const char*>> {};

TEST_P(Muon, FollowsItsFormulas) {
  const auto [nesterov, maximize, adjust] = GetParam();
  const Options options = muon_options({{"nesterov", nesterov},
                                        {"maximize", maximize},
                                        {"adjust_lr", std::string_view(adjust)},
                                        {"newton_schulz", std::string_view("jordan")},
                                        {"precision", std::string_view("highest")}});
  for (const auto& [m, n] : {std::pair(9, 4), std::pair(4, 9), std::pair(6, 6)}) {
    const OfMuon p = drawn(3, m, n, at::kDouble), before = copy_of(p);
    comm::run(update(kMuon, muon_batch(p, options), options));
    const at::Tensor G = before.G * (maximize ? -1 : 1), M = kMu * before.M + G;
    const double ratio = static_cast<double>(m) / n;
    double factor = std::sqrt(ratio);
    if (std::string_view(adjust) == "rms_norm") factor = 0.2 * std::sqrt(std::max(m, n));
    if (std::string_view(adjust) == "original") factor = std::sqrt(std::max(1., ratio));
    const at::Tensor U = orthonormalized(nesterov ? G + kMu * M : M);
    EXPECT_LE(relative_error(p.M, M), 1e-15);
    EXPECT_LE(relative_error(p.X, (1 - kLr * kDecay) * before.X - kLr * factor * U), 1e-12);
    EXPECT_TRUE(bitwise_equal(p.G, before.G));
  }
}

INSTANTIATE_TEST_SUITE_P(Options, Muon,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Values("spectral_norm", "rms_norm", "original")));

TEST(MuonOfStatesInOtherDtypes, IsThatOfTheirValues) {
  const Options options = muon_options({{"precision", std::string_view("highest")}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    OfMuon p = drawn(2, 8, 5, dtype), wide = p;
    p.M = p.M.to(at::kFloat);
    wide = {p.X.to(at::kDouble), p.G.to(at::kDouble), p.M.to(at::kDouble)};
    comm::run(update(kMuon, muon_batch(p, options), options));
    comm::run(update(kMuon, muon_batch(wide, options), options));
    EXPECT_LE(relative_error(p.M, wide.M), 1e-6);
    EXPECT_LE(relative_error(p.X, wide.X), 4 * unit_roundoff(dtype) + 1e-5);
  }
}

TEST(MuonOfZeroGradients, OnlyDecaysWeights) {
  const Options options = muon_options({});
  OfMuon p = drawn(2, 6, 4, at::kFloat);
  p.G.zero_();
  p.M.zero_();
  const OfMuon before = copy_of(p);
  comm::run(update(kMuon, muon_batch(p, options), options));
  EXPECT_EQ(p.M.abs().max().item<double>(), 0);
  EXPECT_LE(relative_error(p.X, (1 - kLr * kDecay) * before.X), 1e-6);
}

TEST(MuonOfMatricesThatStay, ChangesTheOthersAlone) {
  const Options options = muon_options({});
  const OfMuon p = drawn(3, 6, 4, at::kFloat), before = copy_of(p), all = copy_of(p);
  Batch batch = muon_batch(p, options);
  batch.marks = {at::zeros({1}), at::ones({1}), at::zeros({1})};
  comm::run(update(kMuon, batch, options));
  comm::run(update(kMuon, muon_batch(all, options), options));
  for (const int64_t i : {0, 1, 2}) {
    EXPECT_TRUE(bitwise_equal(p.X[i], i == 1 ? before.X[i] : all.X[i])) << i;
    EXPECT_TRUE(bitwise_equal(p.M[i], i == 1 ? before.M[i] : all.M[i])) << i;
  }
}

TEST(MuonOfAStepThatTheDeviceLeavesOut, ChangesNothing) {
  const Options options = muon_options({});
  const OfMuon p = drawn(2, 6, 4, at::kFloat), before = copy_of(p);
  p.G[0][2][1] = std::numeric_limits<float>::quiet_NaN();
  const float left_out = 1;
  Batch batch = muon_batch(p, options);
  batch.frozen.left_out = &left_out;
  comm::run(update(kMuon, batch, options));
  EXPECT_TRUE(bitwise_equal(p.X, before.X));
  EXPECT_TRUE(bitwise_equal(p.M, before.M));
}

TEST(MuonUnderZero, CountsEachEntryThatIsNotFiniteOnce) {
  const Options options = muon_options({{"precision", std::string_view("highest")}});
  const OfMuon p = drawn(2, 6, 4, at::kDouble), finite = copy_of(p);
  p.G[0][2][1] = std::numeric_limits<double>::quiet_NaN();
  p.G[1][0][0] = std::numeric_limits<double>::infinity();
  finite.G[0][2][1] = 0;
  finite.G[1][0][0] = 0;
  int64_t zeroed = 0;
  Batch batch = muon_batch(p, options);
  batch.gradients.zeroed = &zeroed;
  comm::run(update(kMuon, batch, options));
  comm::run(update(kMuon, muon_batch(finite, options), options));
  EXPECT_EQ(zeroed, 2);
  EXPECT_LE(relative_error(p.X, finite.X), 1e-14);
  EXPECT_LE(relative_error(p.M, finite.M), 1e-14);
}

TEST(MuonWithRatesOnTheDevice, IsThatOfPlainNumbers) {
  Options options = muon_options({{"precision", std::string_view("highest")}});
  const OfMuon p = drawn(2, 6, 4, at::kDouble), plain = copy_of(p);
  comm::run(update(kMuon, muon_batch(plain, options), options));
  options.set("lr", 1.0);
  options.set("weight_decay", 1.0);
  Batch batch = muon_batch(p, options);
  batch.factors.multipliers = {at::full({1}, kLr, at::kFloat), at::full({1}, kDecay, at::kFloat)};
  comm::run(update(kMuon, batch, options));
  EXPECT_LE(relative_error(p.X, plain.X), 1e-15);
}

}  // namespace

}  // namespace torchdion::algorithms
