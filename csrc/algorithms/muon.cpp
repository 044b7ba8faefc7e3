#include "algorithms/muon.h"

#include <ATen/ops/cat.h>

#include <cmath>

#include "algorithms/batch.h"
#include "algorithms/shared.h"
#include "algorithms/whole_matrices.h"
#include "linalg/accumulate.h"
#include "linalg/backend.h"
#include "linalg/look_ahead.h"
#include "linalg/newton_schulz.h"
#include "linalg/rates.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr Choice kNewtonSchulzNames[] = {{"jordan", "jordan"}, {"polar_express", "polar_express"}, {"gram", "gram"}};
constexpr Choices kNewtonSchulz{"NewtonSchulz", kNewtonSchulzNames};
constexpr Choice kAdjustLrNames[] = {
    {"spectral_norm", "spectral_norm"}, {"rms_norm", "rms_norm"}, {"original", "original"}};
constexpr Choices kAdjustLr{"AdjustLr", kAdjustLrNames};

constexpr Option kMuonOptions[] = {
    {.name = "lr",
     .initial = 0.02,
     .allowed = kNotNegative,
     .doc = "learning rate η, before the factor that adjust_lr says",
     .may_be_tensor = true},
    {"mu", 0.95, kBelowOne, "momentum decay μ"},
    nesterov_of(true, "orthonormalize G + μ M, not M"),
    {"newton_schulz", std::string_view("polar_express"), one_of(kNewtonSchulz),
     "the iteration: Jordan's polynomial, those of Polar Express (arXiv 2505.16932), or these on the Gram matrix"},
    {"ns_steps", int64_t{5}, kBelowHundred, "Newton–Schulz iterations"},
    {"adjust_lr", std::string_view("spectral_norm"), one_of_or_none(kAdjustLr),
     "the factor on lr of an m×n matrix: sqrt(m / n), 0.2 sqrt(max(m, n)), sqrt(max(1, m / n)), or none"},
    precision_of("medium"),
    kOwnersOption,
    kMomentumDtype,
};

constexpr State kMuonStates[] = {
    {.name = "momentum", .holder = Holder::each_replica, .dtype_option = "momentum_dtype"},
};

// What matrices are orthonormalized in, and travel to their owners as.
at::ScalarType orthonormalized_dtype(const BatchShape& shape, const Options& options) {
  const bool in_half = options.text("precision") == "medium" && shape.computing != at::kDouble;
  return in_half ? at::kBFloat16 : shape.computing;
}

linalg::NewtonSchulzSteps newton_schulz_steps(const Options& options, at::ScalarType dtype) {
  const std::string_view kind = options.text("newton_schulz");
  const int64_t steps = options.integer("ns_steps");
  if (kind == "jordan") return {std::vector<linalg::Quintic>(steps, linalg::kJordan)};
  const bool on_gram = kind == "gram";
  const double slack = on_gram && dtype == at::kBFloat16 ? linalg::kHalfGramSlack : linalg::kPolarExpressSlack;
  return {linalg::polar_express(steps, slack), linalg::kPolarExpressSlack, on_gram};
}

double factor_on_lr(const Batch& batch, const Options& options) {
  if (is_none(options.at("adjust_lr"))) return 1;
  const std::string_view rule = options.text("adjust_lr");
  if (rule == "rms_norm") return 0.2 * std::sqrt(static_cast<double>(std::max(batch.shape.m, batch.shape.n)));
  return rule == "original" ? std::max(1., batch.shape_factor) : batch.shape_factor;
}

// Elements of the workspace, which is of the computing dtype, that hold the look-ahead.
int64_t elements_of_look_ahead(const BatchShape& shape, const Options& options) {
  const auto bytes = shape.count * shape.rows * shape.cols *
                     static_cast<int64_t>(c10::elementSize(orthonormalized_dtype(shape, options)));
  const auto element = static_cast<int64_t>(c10::elementSize(shape.computing));
  return (bytes + element - 1) / element;
}

// The look-ahead in the workspace, [count, rows, cols]: contiguous as it travels, or, of tall matrices that are whole
// here, the transpose of what is, as newton_schulz() reads it.
at::Tensor room_for_look_ahead(const Batch& batch, const Options& options) {
  const BatchShape& shape = batch.shape;
  const at::Tensor room =
      batch.workspace.view(orthonormalized_dtype(shape, options)).narrow(0, 0, shape.count * shape.rows * shape.cols);
  if (!batch.layout.is_local() || shape.rows <= shape.cols) return room.view({shape.count, shape.rows, shape.cols});
  return room.view({shape.count, shape.cols, shape.rows}).transpose(1, 2);
}

// All momenta get their gradients; L, of [count, rows, cols], what this rank passes on to owners.
void add_gradients_(const Matrices& L, const Batch& batch, const linalg::GradientRule& gradients, double ahead) {
  const Matrices &M = batch.states.front(), &G = batch.G;
  const Piece sent = sent_to_owners(batch.layout, batch.shape);
  const auto rule_from = [&](int64_t index) {
    linalg::GradientRule rule = gradients;
    if (rule.unchanged) rule.unchanged += index;
    return rule;
  };
  for (const Piece& others : {Piece{0, sent.begin}, Piece{sent.end(), M.count() - sent.end()}}) {
    linalg::accumulate_(M.slice(others.begin, others.end()), G.slice(others.begin, others.end()),
                        rule_from(others.begin));
  }
  linalg::look_ahead_(L.slice(sent.begin, sent.end()), M.slice(sent.begin, sent.end()), G.slice(sent.begin, sent.end()),
                      rule_from(sent.begin), ahead);
}

comm::Task<> muon(Batch batch, Options options) {
  linalg::upload({&batch.X, &batch.G, &batch.states.front()});
  at::Tensor unchanged;
  if (!batch.unchanged.empty()) unchanged = at::cat(batch.unchanged);
  linalg::GradientRule gradients = batch.gradients;
  if (options.flag("maximize")) gradients.factor *= -1;
  if (unchanged.defined()) gradients.unchanged = unchanged.const_data_ptr<float>();

  // M = μ M + G;  L = G + μ M, or M
  gradients.keep = options.number("mu");
  at::Tensor L = room_for_look_ahead(batch, options);
  const Matrices Ls(L);
  add_gradients_(Ls, batch, gradients, options.flag("nesterov") ? gradients.keep : 0);

  // U = orthonormalize(Σ L), whole matrices each by its owner
  at::Tensor U = co_await gather_to_owners(L, batch.layout, batch.shape);
  const Precision precision = enumerator<Precision>(kPrecision, options.text("precision"));
  U = linalg::newton_schulz(U, newton_schulz_steps(options, L.scalar_type()), precision);
  U = co_await scatter_from_owners(L, U, batch.layout, batch.shape);

  // X = (1 − η λ) X − η factor U
  const linalg::FactorRule rates{factor_on_lr(batch, options), options.number("lr"), options.number("weight_decay"),
                                 batch.multipliers, batch.gradients.left_out};
  const at::Tensor factors = linalg::device_factors(rates, batch.workspace.options());
  linalg::DirectionRule rule;
  rule.cautious = options.flag("cautious_wd");
  linalg::axpby_(batch.X, Matrices(U), factors, gradients.unchanged, rule);
}

OwnedWork work_of_owner(const BatchShape& shape, const Layout& layout, const Options& options) {
  const at::ScalarType dtype = orthonormalized_dtype(shape, options);
  return {axes_of_owners(layout),
          linalg::newton_schulz_operations(shape.m, shape.n, newton_schulz_steps(options, dtype), dtype)};
}

// Owners take whole matrices, of which a rank's pieces travel there and back; with replicas, that is a reduce-scatter
// and an all-gather, with copies the all-gather alone.
Cost muon_cost(const BatchShape& shape, const Layout& layout, const Options& options) {
  const auto travelling = static_cast<int64_t>(c10::elementSize(orthonormalized_dtype(shape, options)));
  const auto momentum = static_cast<int64_t>(c10::elementSize(shape.states.front()));
  const auto weight = static_cast<int64_t>(c10::elementSize(shape.parameter));
  const int64_t own = shape.owners.back()[layout.rows.rank], whole = shape.m * shape.n;
  const int64_t side = std::min(shape.m, shape.n);
  Cost cost;
  add_way_to_owners(cost, shape, layout, travelling);
  add_way_from_owners(cost, shape, layout, travelling);
  cost.operations = own * work_of_owner(shape, layout, options).operations;
  // M: read and written; G: read; X: read and written; U: read; L: written and read
  const int64_t sent = sent_to_owners(layout, shape).size * shape.rows * shape.cols;
  cost.memory_bytes = shape.numel * (2 * momentum + 3 * weight + travelling) + sent * 2 * travelling;
  cost.workspace = elements_of_look_ahead(shape, options);
  cost.temporary_bytes = travelling * (own * (3 * whole + 4 * side * side) + shape.count * shape.rows * shape.cols);
  return cost;
}

}  // namespace

constexpr Algorithm kMuon{
    .name = "muon",
    .title = "Muon",
    .takes = Takes::matrices,
    .options = kMuonOptions,
    .states = kMuonStates,
    .cost = muon_cost,
    .update = muon,
    .owned_work = work_of_owner,
    .shares_among_copies = true,
    .decouples = always_decouples,
};

}  // namespace torchdion::algorithms
