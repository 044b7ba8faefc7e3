#include "algorithms/table.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "algorithms/exchange.h"
#include "algorithms/power_iteration.h"
#include "algorithms/right_factor.h"
#include "algorithms/shared.h"
#include "algorithms/weight_update.h"
#include "comm/sums.h"
#include "linalg/accumulate.h"
#include "linalg/copy.h"
#include "words.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr Choice kFactorizationNames[] = {{"power_iteration", "power_iteration", Factorization::power_iteration},
                                          {"svd", "svd", Factorization::svd}};
constexpr Choice kResidualNames[] = {{"scaled", "scaled", Residual::scaled}, {"sign", "sign", Residual::sign}};
constexpr Choices kResidual{"Residual", kResidualNames};
constexpr Option kResidualOption{
    "residual",
    {},
    one_of_or_none(kResidual),
    "how what P Rᵀ leaves moves the weights too: over the length of R's smallest columns, or by its signs"};
constexpr Choice kRightFactorNames[] = {{"normalized", "normalized", RightFactor::normalized},
                                        {"orthonormal", "orthonormal", RightFactor::orthonormal}};

constexpr Option kDionOptions[] = {
    {"mu", 0.95, kBelowOne, "momentum decay μ (arXiv 2504.05295, Algorithm 1)"},
    {"nesterov", false, kFlagOrNone, "factor the momentum a step ahead: at full rank what Muon orthonormalizes"},
    {"error_feedback", true, kFlag, "what P Rᵀ leaves of B stays in M; else M = μ M + G (Appendix B.2)"},
    {.name = "factorization",
     .initial = std::string_view("power_iteration"),
     .allowed = one_of({"Factorization", kFactorizationNames}),
     .doc = "how P is found: one warm-started power iteration, or a singular value decomposition (Appendix B.1)",
     .uncaptured = {std::string_view("svd")}},
    {"rank_fraction", 1.0, kFraction, "r / min(m, n); 0.25 is the usual choice for large models"},
    kRankMultipleOf,
    kOrientationOption,
    kOrthonormalizeOption,
    kRcqrOversample,
    {"right_factor", std::string_view("normalized"), one_of({"RightFactor", kRightFactorNames}),
     "what the update and the next Q take of R: its columns at length 1, or its QR (arXiv 2605.16341)"},
    kResidualOption,
    kSeed,
    kMomentumDtype,
    kQDtype,
};

enum { kDionMomentum, kDionQ };
constexpr State kDionStates[] = {
    kOwnMomentum,
    factor_state("Q", "rank_fraction"),
};

// μ of the look-ahead L = B + μ G, or L = μ B + G without error feedback; 0: L = B. At full rank M is μ² times Muon's
// momentum V with error feedback, and V without, so that both are Muon's G + μ V.
double ahead_of(const Options& options) { return options.flag("nesterov") ? options.number("mu") : 0; }

// Elements at the start of the workspace that hold the mean gradient, where it is needed again once M has got it.
int64_t room_for_mean(const BatchShape& shape, const Layout& layout, const Options& options) {
  const bool averages = !layout.replicas.absent() && !shape.decoupled;
  return averages && ahead_of(options) > 0 ? aligned(shape.numel) : 0;
}

std::optional<Residual> residual_of(const Options& options) {
  if (is_none(options.at("residual"))) return std::nullopt;
  return enumerator<Residual>(kResidual, options.text("residual"));
}

// L lies apart from M where M keeps all of B, and where products read it in another dtype.
IterationSize size_of(const BatchShape& shape, const Options& options) {
  const bool is_ahead = ahead_of(options) > 0;
  const bool reads_another = operand_dtype(shape, options) != shape.computing;
  const bool apart = is_apart(shape.states[kDionMomentum], shape, options) ||
                     (is_ahead && (reads_another || !options.flag("error_feedback")));
  const int64_t r = shape.ranks.front();
  const bool leaves_some = r < std::min(shape.m, shape.n);
  return {r, apart, shape.decoupled, leaves_some ? residual_of(options) : std::nullopt};
}

linalg::LookAheadFactors look_ahead_of(const Options& options) {
  const double ahead = ahead_of(options);
  if (ahead == 0) return {};
  return options.flag("error_feedback") ? linalg::LookAheadFactors{ahead, 1} : linalg::LookAheadFactors{1, ahead};
}

// The gradients as `rule` counts them, at the start of the workspace.
Matrices counted_gradients(const Batch& batch, const Matrices& M, const linalg::GradientRule& rule) {
  const Matrices G = laid_out_as(M, batch.workspace.narrow(0, 0, M.numel()).zero_());
  linalg::accumulate_(G, batch.G, rule);
  return G;
}

// M ← keep M + factor · G of gradients that have been counted.
void add_again_(const Matrices& M, const Matrices& G, linalg::GradientRule rule, double keep, double factor) {
  at::Tensor uncounted;
  if (rule.zeroed) {
    uncounted = at::zeros({1}, at::TensorOptions(at::kLong).device(M.device));
    rule.zeroed = uncounted.mutable_data_ptr<int64_t>();
  }
  rule.keep = keep;
  rule.factor *= factor;
  linalg::accumulate_(M, G, rule);
}

comm::Task<> dion(Batch batch, Options options) {
  const double mu = options.number("mu"), ahead = ahead_of(options);
  const Matrices &M = batch.states[kDionMomentum], &own_Q = batch.states[kDionQ];
  const bool compresses = batch.shape.decoupled, feeds_back = options.flag("error_feedback");
  const Axis dense = compresses ? Axis() : batch.layout.replicas;
  const int64_t for_mean = room_for_mean(batch.shape, batch.layout, options);
  const IterationSize size = size_of(batch.shape, options);
  PowerIteration iteration = power_iteration_of(batch, M, own_Q, size, for_mean, options);
  upload_all(batch, {&iteration});
  const Matrices L = iteration.B;
  Matrices G = batch.G;
  linalg::GradientRule gradients = batch.gradients;
  if (for_mean > 0) {
    G = counted_gradients(batch, M, gradients);
    gradients = {.frozen = batch.frozen};
    at::Tensor mean = batch.workspace.narrow(0, 0, M.numel());
    co_await comm::sum(mean, dense, comm::Order::any);
    mean.div_(dense.size);
  }

  // B = M + G, where M lies, and L = B + μ G;  without error feedback B = μ M + G, and L = μ B + G
  linalg::GradientRule first = gradients;
  if (!feeds_back) first.keep = mu;
  const Axis averaging = for_mean > 0 ? Axis() : dense;
  const bool is_in_place = ahead > 0 && !size.apart;
  // Half of L, which is no larger than the larger of B and G, is what FP16 holds where it holds these.
  const double part = is_in_place ? 0.5 : 1;
  if (size.apart && averaging.absent()) {
    linalg::look_ahead_(L, M, G, first, look_ahead_of(options));
  } else {
    first.keep *= part;
    first.factor *= part * (is_in_place ? 1 + ahead : 1);
    linalg::accumulate_(M, G, first);
    co_await average_(M, batch.workspace, averaging, batch.frozen);
    if (size.apart) linalg::copy_(L, M);
  }

  // P = orthonormalize(L Q);  R = Lᵀ P
  iteration = co_await iterate(iteration);

  // Q = column_normalize(R), or the orthonormal factor of R
  iteration = co_await find_right_factor(iteration);

  // X = (1 − η λ) X − η sqrt(m/n) (P Qᵀ + the residual);  M = B − (1 − μ) P Rᵀ
  if (size.residual == Residual::sign) {
    update_weights_by_signs_(batch, iteration, M, feeds_back ? 1 - mu : 0, options);
    if (is_in_place) add_again_(M, G, gradients, 1 / part, -ahead);
    co_return;
  }
  update_weights_(batch, iteration, options);
  if (is_in_place) add_again_(M, G, gradients, 1 / part, -ahead);
  if (feeds_back) add_product_(M, iteration, -(1 - mu) / part);
}

// What is linear in the number of entries counts as passes over memory.
Cost dion_cost(const BatchShape& shape, const Layout& layout, const Options& options) {
  const IterationSize size = size_of(shape, options);
  const int64_t r = size.r;
  Cost cost;
  const bool averages = !layout.replicas.absent();
  add_iteration(cost, shape, layout, size, options);
  if (averages && !shape.decoupled) add_average(cost, shape, layout);
  cost.operations += 8 * shape.numel * r;
  const int64_t momentum = element_size(shape.states[kDionMomentum]);
  const int64_t weight = element_size(shape.parameter);
  // M: read and written by M + G and by the error feedback; L: read by two products; X: read and written; G: read
  cost.memory_bytes =
      shape.numel * (4 * momentum + weight) + memory_bytes_of_update(shape, size, shape.states[kDionMomentum], options);
  if (size.apart) {
    cost.memory_bytes += shape.numel * 3 * element_size(operand_dtype(shape, options));
  } else {
    cost.memory_bytes += shape.numel * 2 * momentum;
    if (ahead_of(options) > 0) cost.memory_bytes += shape.numel * (2 * momentum + weight);  // M and G, once more
  }
  if (averages && !shape.decoupled) cost.workspace = std::max(cost.workspace, shape.numel);
  cost.workspace +=
      room_for_mean(shape, layout, options) + workspace_of_update(shape, size, shape.states[kDionMomentum], options);
  return cost;
}

void check_layout(const Layout& layout, bool transposed, bool decoupled, const Options& options,
                  const std::string& name) {
  check_orthonormalize(layout, transposed, decoupled, options, name);
  // Replicas whose momenta differ would move their weights apart.
  TORCH_CHECK_VALUE(!decoupled || !residual_of(options), prefix(), assigned(kResidualOption, options.at("residual")),
                    " needs the same momentum on all replicas, and those of ", name,
                    " keep momenta of their own: average gradients before the step, or leave it out");
}

// (m + n) r elements of P and R, or m n of M, which singular vectors need.
bool factors_are_fewer(int64_t rows, int64_t cols, std::span<const int64_t> ranks, const Options& options) {
  return !takes_svd(options) && (rows + cols) * ranks.front() < rows * cols;
}

}  // namespace

// Dion: Algorithm 1 of arXiv 2504.05295 on whole matrices, Algorithms 3 and 4 on cut ones.
constexpr Algorithm kDion{
    .name = "dion",
    .title = "Dion",
    .options = kDionOptions,
    .states = kDionStates,
    .cost = dion_cost,
    .update = dion,
    .owned_work = work_of_iterations,
    .class_of_step = class_of_step,
    .decouples = factors_are_fewer,
    .check_layout = check_layout,
};

}  // namespace torchdion::algorithms
