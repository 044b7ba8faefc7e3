#include "algorithms/table.h"

#include <algorithm>
#include <utility>

#include "algorithms/exchange.h"
#include "algorithms/power_iteration.h"
#include "algorithms/right_factor.h"
#include "algorithms/shared.h"
#include "algorithms/weight_update.h"
#include "linalg/accumulate.h"
#include "linalg/copy.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr Option kDoubleDionOptions[] = {
    {"mu", 0.95, kBelowOne, "momentum decay μ₂ of what replicas share (arXiv 2504.05295, Algorithm 6)"},
    {"rank_fraction", 0.25, kFraction, "r₂ / min(m, n), of the update"},
    {"replicate_mu", 0.999, kBelowOne, "momentum decay μ₁ of each replica's own"},
    {"replicate_rank_fraction", 1.0 / 128, kFraction, "r₁ / min(m, n), of what replicas exchange"},
    kRankMultipleOf,
    kOrientationOption,
    kOrthonormalizeOption,
    kRcqrOversample,
    {.name = "delayed",
     .initial = false,
     .allowed = kFlag,
     .doc = "what replicas exchange goes on beside the next forward and backward pass, and counts a step later",
     .uncaptured = {true, "a part of its work goes on after the step"}},
    kSeed,
    kMomentumDtype,
    kQDtype,
};

enum { kSharedMomentum, kSharedQ, kReplicateMomentum, kReplicateQ };
constexpr State kDoubleDionStates[] = {
    {.name = "momentum", .dtype_option = "momentum_dtype"},
    factor_state("Q", "rank_fraction"),
    {.name = "replicate_momentum", .holder = Holder::each_replica, .dtype_option = "momentum_dtype"},
    factor_state("replicate_Q", "replicate_rank_fraction", 1),
};

enum { kOfUpdate, kOfReplicas };  // ranks

bool is_delayed(const Options& options) { return options.flag("delayed"); }

IterationSize size_of_first(const BatchShape& shape, const Options& options) {
  return {shape.ranks[kOfReplicas], is_apart(shape.states[kReplicateMomentum], shape, options), shape.decoupled};
}

IterationSize size_of_second(const BatchShape& shape, const Options& options) {
  return {shape.ranks[kOfUpdate], is_apart(shape.states[kSharedMomentum], shape, options), /*averages=*/false};
}

int64_t room_for_turned(const BatchShape& shape) {
  return shape.count * std::max(shape.rows, shape.cols) * shape.ranks[kOfReplicas];
}

// The first iteration's, without room_for_turned(); B₁ is averaged in it before where replicas are dense.
int64_t workspace_of_first(const BatchShape& shape, const Layout& layout, const Options& options) {
  const int64_t iteration = workspace_of_iteration(shape, layout, size_of_first(shape, options), options);
  const bool is_averaged = !layout.replicas.absent() && !shape.decoupled;
  return is_averaged ? std::max(iteration, shape.numel) : iteration;
}

PowerIteration first_iteration(const Batch& batch, const Options& options) {
  const int64_t end = workspace_of_first(batch.shape, batch.layout, options);
  PowerIteration first = power_iteration_of(batch, batch.states[kReplicateMomentum], batch.states[kReplicateQ],
                                            size_of_first(batch.shape, options), 0, options);
  first.room_for_turned = batch.workspace.narrow(0, end, room_for_turned(batch.shape));
  return first;
}

PowerIteration second_iteration(const Batch& batch, int64_t offset, const Options& options) {
  return power_iteration_of(batch, batch.states[kSharedMomentum], batch.states[kSharedQ],
                            size_of_second(batch.shape, options), offset, options);
}

// B₁ = μ₁ M₁ + G, in the place of M₁. The state M₁ is that of the paper divided by μ₁, so that no step that is left out
// decays it.
void add_gradients_(const Batch& batch, const Options& options) {
  linalg::GradientRule gradients = batch.gradients;
  gradients.keep = options.number("replicate_mu");
  linalg::accumulate_(batch.states[kReplicateMomentum], batch.G, gradients);
}

// Finds P₁ and R₁, which replicas exchange, from B₁ in the place of M₁.
comm::Task<PowerIteration> first_stage(Batch batch, PowerIteration first) {
  const Matrices M1 = batch.states[kReplicateMomentum];
  const Axis dense = batch.shape.decoupled ? Axis() : batch.layout.replicas;
  co_await average_(M1, batch.workspace, dense, batch.frozen);
  if (first.size.apart) linalg::copy_(first.B, M1);

  // P₁ = orthonormalize(B₁ Q₁);  R₁ = B₁ᵀ P₁;  Q₁ = column_normalize(R₁);  M₁ = B₁ − P₁ R₁ᵀ
  first = co_await iterate(first);
  first = co_await find_right_factor(first);
  add_product_(M1, first, -1);
  co_return first;
}

// Updates what is equal on all replicas, from B₂ = M₂ + P₁ R₁ᵀ in the place of M₂.
comm::Task<> second_stage(Batch batch, PowerIteration second, Options options) {
  const Matrices& M2 = batch.states[kSharedMomentum];
  if (second.size.apart) linalg::copy_(second.B, M2);

  // P₂ = orthonormalize(B₂ Q₂);  R₂ = B₂ᵀ P₂;  Q₂ = column_normalize(R₂);  M₂ = B₂ − (1 − μ₂) P₂ R₂ᵀ
  second = co_await iterate(second);
  second = co_await find_right_factor(second);
  add_product_(M2, second, -(1 - options.number("mu")));

  // X = (1 − η λ) X − η sqrt(m/n) P₂ Q₂ᵀ
  update_weights_(batch, second, options);
}

comm::Task<> double_dion(Batch batch, Options options) {
  if (is_delayed(options)) {  // M₂ has what was exchanged since the last step: it is B₂
    PowerIteration second = second_iteration(batch, 0, options);
    upload_all(batch, {&second});
    co_await second_stage(batch, second, options);
    co_return;
  }
  PowerIteration first = first_iteration(batch, options);
  const int64_t of_first = workspace_of_first(batch.shape, batch.layout, options) + room_for_turned(batch.shape);
  PowerIteration second = second_iteration(batch, aligned(of_first), options);
  upload_all(batch, {&first, &second});
  add_gradients_(batch, options);
  first = co_await first_stage(batch, first);
  add_product_(batch.states[kSharedMomentum], first, 1);
  co_await second_stage(batch, second, options);
}

void take_off(const Batch& batch, const Options& options) {
  Batch uploaded = batch;
  linalg::upload({&uploaded.states[kReplicateMomentum], &uploaded.G});
  add_gradients_(uploaded, options);
}

comm::Task<> in_flight(Batch batch, Options options) {
  PowerIteration first = first_iteration(batch, options);
  upload_all(batch, {&first});
  first = co_await first_stage(batch, first);
}

void land(const Batch& batch, const Options& options) {
  add_product_(batch.states[kSharedMomentum], first_iteration(batch, options), 1);
}

constexpr Delayed kDelayed{is_delayed, take_off, in_flight, land};

Cost double_dion_cost(const BatchShape& shape, const Layout& layout, const Options& options) {
  const int64_t r1 = shape.ranks[kOfReplicas], r2 = shape.ranks[kOfUpdate];
  const bool averages = !layout.replicas.absent();
  Cost cost;
  add_iteration(cost, shape, layout, size_of_first(shape, options), options);
  cost.workspace = workspace_of_first(shape, layout, options) + room_for_turned(shape);
  if (is_delayed(options)) {
    std::swap(cost.workspace, cost.workspace_in_flight);
  } else {
    cost.workspace = aligned(cost.workspace);
  }
  const IterationSize second = size_of_second(shape, options);
  add_iteration(cost, shape, layout, second, options);
  if (averages && !shape.decoupled) add_average(cost, shape, layout);
  cost.operations += shape.numel * (8 * r1 + 8 * r2);
  const int64_t shared = element_size(shape.states[kSharedMomentum]);
  const int64_t own = element_size(shape.states[kReplicateMomentum]);
  const int64_t weight = element_size(shape.parameter);
  // M₁, M₂: read and written by what is added and by the feedback, read by two products, or copied and the copy read;
  // X: read and written; G: read
  const int64_t operand = element_size(operand_dtype(shape, options));
  const auto of_products = [&](const IterationSize& size, int64_t momentum) {
    return size.apart ? momentum + 3 * operand : 2 * momentum;
  };
  cost.memory_bytes = shape.numel * (4 * own + of_products(size_of_first(shape, options), own) + 4 * shared +
                                     of_products(second, shared) + weight) +
                      memory_bytes_of_update(shape, second, shape.states[kSharedMomentum], options);
  cost.workspace += workspace_of_update(shape, second, shape.states[kSharedMomentum], options);
  return cost;
}

// (m + n) r₁ elements of P₁ and R₁, or m n of M₁.
bool exchanged_factors_are_fewer(int64_t rows, int64_t cols, std::span<const int64_t> ranks, const Options&) {
  return (rows + cols) * ranks[kOfReplicas] < rows * cols;
}

}  // namespace

// Double Dion: Algorithm 6 of arXiv 2504.05295. What replicas exchange has a small rank of its own.
constexpr Algorithm kDoubleDion{
    .name = "double_dion",
    .title = "Double Dion",
    .options = kDoubleDionOptions,
    .states = kDoubleDionStates,
    .cost = double_dion_cost,
    .update = double_dion,
    .delayed = &kDelayed,
    .owned_work = work_of_iterations,
    .class_of_step = class_of_step,
    .decouples = exchanged_factors_are_fewer,
    .check_layout = check_orthonormalize,
};

}  // namespace torchdion::algorithms
