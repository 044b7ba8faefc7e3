#include "algorithms/power_iteration.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "algorithms/exchange.h"
#include "algorithms/right_factor.h"
#include "algorithms/truncated_svd.h"
#include "comm/sums.h"
#include "linalg/backend.h"
#include "linalg/copy.h"
#include "linalg/factor_dtypes.h"
#include "linalg/gemm.h"
#include "words.h"

namespace torchdion::algorithms {

using comm::Order;
using linalg::Matrices;

namespace {

enum { kCols, kReplicas };  // among the axes of those who orthonormalize

Orthonormalize method_of(const Options& options) {
  return enumerator<Orthonormalize>(kOrthonormalize, options.text("orthonormalize"));
}

// Without error feedback M = μ M + G forgets: roundings weigh 1 + μ² + μ⁴ + … of one.
double steps_in_momentum(const Options& options) {
  if (!options.has("error_feedback") || options.flag("error_feedback")) return std::numeric_limits<double>::infinity();
  const double mu = options.number("mu");
  return 1 / (1 - mu * mu);
}

linalg::OrthonormalizeOptions orthonormalize_options(const Batch& batch, const Options& options) {
  linalg::OrthonormalizeOptions how;
  how.method = method_of(options);
  how.oversample = options.number("rcqr_oversample");
  how.random = linalg::RandomMatrix::sketch(options.integer("seed"), batch.step);
  how.random.steps_before = batch.steps_before;
  how.precision = linalg::precision_on(batch.workspace.device(), precision_asked(options));
  const at::ScalarType dtype = batch.workspace.scalar_type();
  how.noise = linalg::noise_of_step(dtype, batch.shape.n, how.precision, batch.step, batch.steps_before);
  how.noise.most_steps = steps_in_momentum(options);
  how.order = batch.order;
  how.counts = batch.counts;
  return how;
}

// C = α A B of few columns. BLAS on a CPU takes thrice as long where the columns of a large A are contiguous, but not
// to find Cᵀ = Bᵀ Aᵀ, which is turned then.
void multiply_(const Matrices& C, const Matrices& A, const Matrices& B, double alpha, const PowerIteration& iteration) {
  if (!iteration.room_for_turned.defined() || A.row_major() || !A.device.is_cpu()) {
    linalg::gemm_(C, A, B, alpha, 0, iteration.precision);
    return;
  }
  const at::Tensor room = iteration.room_for_turned.narrow(0, 0, C.numel()).view({C.count(), C.cols, C.rows});
  const Matrices turned = Matrices(room).t();
  linalg::gemm_(turned, A, B, alpha, 0, iteration.precision);
  linalg::copy_(C, turned);
}

// Whether P is a sum over ranks, which is made of FP32 numbers.
bool is_summed(const Layout& layout, const IterationSize& size) {
  return !layout.rows.absent() || !layout.cols.absent() || (size.averages && !layout.replicas.absent());
}

// Offsets in the workspace, in elements of the computing dtype.
class Places {
 public:
  int64_t B = 0, P = 0, copy_of_P = 0, R = 0, whole_Q = 0, copy_of_Q = 0, copy_of_R = 0, update = 0, svd = 0, end = 0;
  at::ScalarType operand, dtype_of_P;
  bool has_copies, has_update;

  Places(const BatchShape& shape, const Layout& layout, const IterationSize& size, const Options& options)
      : operand(operand_dtype(shape, options)),
        dtype_of_P(operand),
        has_copies(operand != shape.computing),
        has_update(orthonormalizes_right_factor(options) || (size.residual == Residual::scaled && !has_copies)) {
    const int64_t of_B = shape.numel, of_P = shape.count * shape.rows * size.r,
                  of_Q = shape.count * shape.cols * size.r;
    const bool copies_P = has_copies && (is_summed(layout, size) || method_of(options) == Orthonormalize::qr);
    if (copies_P) dtype_of_P = shape.computing;
    const auto place = [&](int64_t numel, at::ScalarType dtype) {
      const int64_t per = element_size(shape.computing) / element_size(dtype);
      const int64_t begin = aligned(end);
      end = begin + (numel + per - 1) / per;
      return begin;
    };
    // But for a residual, nobody reads B once R is there: the copy of R takes its place, which a rank with fewer rows
    // than r makes larger.
    const bool replaces_B = has_copies && size.apart && !size.residual;
    if (size.apart) B = place(replaces_B ? std::max(of_B, of_Q) : of_B, operand);
    P = place(of_P, dtype_of_P);
    if (copies_P) copy_of_P = place(of_P, operand);
    R = place(of_Q, shape.computing);
    if (!layout.rows.absent()) whole_Q = place(of_Q, shape.computing);
    if (has_copies) copy_of_Q = place(of_Q, operand);
    if (has_copies) copy_of_R = replaces_B ? B : place(of_Q, operand);
    if (has_update) update = place(of_Q, shape.computing);
    if (takes_svd(options)) svd = place(of_B, shape.computing);
  }
};

// Of one P.
int64_t orthonormalize_operations(const BatchShape& shape, int64_t r, const Options& options) {
  return linalg::orthonormalize_operations(shape.rows, r, shape.m, method_of(options),
                                           options.number("rcqr_oversample"), shape.computing);
}

}  // namespace

bool takes_svd(const Options& options) {
  return options.has("factorization") && options.text("factorization") == "svd";
}

bool orthonormalizes_right_factor(const Options& options) {
  return options.has("right_factor") && options.text("right_factor") == "orthonormal";
}

int64_t class_of_step(int64_t step, const Options& options) {
  if (method_of(options) == Orthonormalize::rcqr) return step;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(step)));
}

void check_orthonormalize(const Layout& layout, bool transposed, bool, const Options& options,
                          const std::string& name) {
  if (method_of(options) != Orthonormalize::qr || layout.rows.absent()) return;
  Option others = kOrthonormalizeOption;
  others.allowed.choices = kOrthonormalizeOfPieces;
  const std::string_view orientation = text_of(kOrientation, transposed ? Orientation::right : Orientation::left);
  TORCH_CHECK_VALUE(false, prefix(), others.name, " must be ", words_of(others), " for ", name, ", whose ",
                    transposed ? "columns" : "rows", " are cut (", assigned(kOrientationOption, orientation), "), got ",
                    shown(kOrthonormalizeOption, options.at("orthonormalize")));
}

at::ScalarType operand_dtype(const BatchShape& shape, const Options& options) {
  if (takes_svd(options)) return shape.computing;
  return linalg::factor_dtype(shape.device, shape.computing, precision_asked(options));
}

bool is_apart(at::ScalarType momentum, const BatchShape& shape, const Options& options) {
  const at::ScalarType operand = operand_dtype(shape, options);
  return operand != shape.computing && operand != momentum;
}

Matrices laid_out_as(const Matrices& others, const at::Tensor& flat) {
  if (others.row_major()) return Matrices(flat.view({others.count(), others.rows, others.cols}));
  return Matrices(flat.view({others.count(), others.cols, others.rows})).t();
}

int64_t workspace_of_iteration(const BatchShape& shape, const Layout& layout, const IterationSize& size,
                               const Options& options) {
  return Places(shape, layout, size, options).end;
}

PowerIteration power_iteration_of(const Batch& batch, const Matrices& momentum, const Matrices& Q,
                                  const IterationSize& size, int64_t offset, const Options& options) {
  const int64_t count = momentum.count(), m = momentum.rows, n = momentum.cols, r = size.r;
  const Places places(batch.shape, batch.layout, size, options);
  const auto room = [&](int64_t begin, at::IntArrayRef sizes, at::ScalarType dtype) {
    const int64_t numel = c10::multiply_integers(sizes);
    const int64_t per = element_size(batch.shape.computing) / element_size(dtype);
    const at::Tensor whole = batch.workspace.narrow(0, offset + begin, (numel + per - 1) / per);
    return (per == 1 ? whole : whole.view(dtype)).narrow(0, 0, numel).view(sizes);
  };
  PowerIteration iteration;
  iteration.B = size.apart ? laid_out_as(momentum, room(places.B, {count * m * n}, places.operand)) : momentum;
  iteration.own_Q = Q;
  iteration.P = room(places.P, {count, m, r}, places.dtype_of_P);
  iteration.R = room(places.R, {count, n, r}, batch.shape.computing);
  iteration.layout = batch.layout;
  iteration.Ps = Matrices(iteration.P);
  iteration.Rs = Matrices(iteration.R);
  iteration.shape = batch.shape;
  if (!batch.layout.rows.absent()) iteration.whole_Q = room(places.whole_Q, {count, n, r}, batch.shape.computing);
  Factors& factors = iteration.factors;
  factors = {{}, {}, {}, {}, iteration.Ps, iteration.Q(), iteration.Rs, iteration.Q()};
  if (places.has_update) {
    factors.room_for_update = room(places.update, {count, n, r}, batch.shape.computing);
    factors.update = Matrices(factors.room_for_update);
  }
  if (places.has_copies) {
    factors.copy_of_Q = room(places.copy_of_Q, {count, n, r}, places.operand);
    factors.copy_of_R = room(places.copy_of_R, {count, n, r}, places.operand);
    factors.Q = Matrices(factors.copy_of_Q);
    factors.R = Matrices(factors.copy_of_R);
    factors.update = factors.Q;
  }
  if (places.dtype_of_P != places.operand) {
    factors.copy_of_P = room(places.copy_of_P, {count, m, r}, places.operand);
    factors.P = Matrices(factors.copy_of_P);
  }
  if (!size.averages) iteration.layout.replicas = {};
  iteration.owners = batch.shape.owners;
  if (takes_svd(options)) {
    iteration.room_for_svd = room(places.svd, {batch.shape.numel}, batch.shape.computing);
  } else if (!size.averages && !iteration.owners.empty()) {
    iteration.owners[kReplicas] = {iteration.owners[kCols][batch.layout.cols.rank]};
  }
  iteration.orthonormalize = orthonormalize_options(batch, options);
  iteration.frozen = batch.frozen;
  iteration.precision = precision_asked(options);
  iteration.size = size;
  iteration.orthonormalizes_R = orthonormalizes_right_factor(options);
  return iteration;
}

void upload_all(Batch& batch, const std::vector<PowerIteration*>& iterations) {
  std::vector<Matrices*> lists;
  for (Matrices& state : batch.states) lists.push_back(&state);
  for (PowerIteration* iteration : iterations) {
    Factors& factors = iteration->factors;
    lists.insert(lists.end(), {&iteration->B, &iteration->own_Q, &iteration->Ps, &iteration->Rs, &factors.P, &factors.Q,
                               &factors.R, &factors.update});
  }
  lists.insert(lists.end(), {&batch.X, &batch.G});
  linalg::upload(lists);
}

comm::Task<PowerIteration> iterate(PowerIteration iteration) {
  Layout layout = iteration.layout;
  const Axis rows = layout.rows, replicas = layout.replicas;
  const Matrices &B = iteration.B, &P = iteration.Ps, &R = iteration.Rs;
  const Factors& factors = iteration.factors;
  const double mean = 1.0 / replicas.size;

  if (!rows.absent()) {
    co_await gather_columns_(iteration.whole_Q, iteration.own_Q, iteration.R, rows);
  }
  // Without P nothing else of a matrix changes: R is zero, and a zero column of R keeps its column of Q.
  const bool may_stay = iteration.frozen.may_have_any();
  if (iteration.room_for_svd.defined()) {
    co_await left_singular_vectors_(iteration.P, B, iteration.room_for_svd, layout, iteration.shape);
    if (may_stay) linalg::clear_(P, iteration.frozen);
  } else {
    if (factors.copy_of_Q.defined()) linalg::copy_(factors.Q, iteration.Q());
    multiply_(P, B, factors.Q, mean, iteration);
    if (may_stay) linalg::clear_(P, iteration.frozen);
    co_await orthonormalize_sum_(iteration.P, layout, iteration.shape.m, iteration.orthonormalize, iteration.owners);
  }

  // R = Bᵀ P
  if (factors.copy_of_P.defined()) linalg::copy_(factors.P, P);
  multiply_(R, B.t(), factors.P, mean, iteration);
  co_await comm::sum(iteration.R, rows, iteration.orthonormalize.order);
  co_await comm::sum(iteration.R, replicas, Order::any);
  co_return iteration;
}

void add_product_(const Matrices& M, const PowerIteration& iteration, double alpha) {
  linalg::gemm_(M, iteration.factors.P, iteration.factors.R.t(), alpha, 1, iteration.precision);
}

OwnedWork work_of_iterations(const BatchShape& shape, const Layout& layout, const Options& options) {
  if (takes_svd(options)) return work_of_svd(shape, layout);
  if (!layout.rows.absent()) return {};
  int64_t operations = 0;
  for (const int64_t r : shape.ranks) operations += orthonormalize_operations(shape, r, options);
  return {{layout.cols, shape.decoupled ? layout.replicas : Axis()}, operations};
}

void add_average(Cost& cost, const BatchShape& shape, const Layout& layout) {
  cost.replicas = all_reduced(shape.numel, element_size(shape.computing), layout.replicas);
}

void add_iteration(Cost& cost, const BatchShape& shape, const Layout& layout, const IterationSize& size,
                   const Options& options) {
  const int64_t element = element_size(shape.computing), fp64 = int64_t{8};
  const int64_t count = shape.count, r = size.r, P = shape.rows * r, R = shape.cols * r;
  const bool averages = size.averages && !layout.replicas.absent();
  cost.workspace += workspace_of_iteration(shape, layout, size, options);
  add_right_factor(cost, shape, layout, size, options);
  if (takes_svd(options)) {
    add_svd(cost, shape, layout, r);
    if (!layout.rows.absent()) add(cost.rows, {count * 2 * R, ring(count * 3 * R * element, layout.rows)});  // Q and R
    if (!layout.cols.absent()) add(cost.cols, {count * r, ring(2 * count * r * fp64, layout.cols)});  // column norms
    return;
  }
  if (!layout.rows.absent()) {  // Q, R and the orthonormalization
    const int64_t others = linalg::orthonormalize_elements(r, shape.m, method_of(options),
                                                           options.number("rcqr_oversample"), shape.computing);
    add(cost.rows, {count * (2 * R + others), ring(count * (3 * R * element + 2 * others * fp64), layout.rows)});
  }
  if (!layout.cols.absent()) {  // P and the column norms
    add(cost.cols, {count * (P + r), ring(2 * count * (P * element + r * fp64), layout.cols)});
  }
  // Matrices of which this rank has P, for the replicas to sum, and those that it orthonormalizes.
  const int64_t summed = shape.owners.empty() ? count : shape.owners[kCols][layout.cols.rank];
  const int64_t orthonormalized =
      shape.owners.empty() || !averages ? summed : shape.owners[kReplicas][layout.replicas.rank];
  if (averages) add(cost.replicas, all_reduced(summed * P + count * R, element, layout.replicas));
  cost.operations += orthonormalized * orthonormalize_operations(shape, r, options);
  const Places places(shape, layout, size, options);
  const at::ScalarType sums = linalg::sum_dtype_on_gpu(places.operand, precision_asked(options));
  cost.temporary_bytes += count * linalg::orthonormalize_bytes_on_gpu(shape.rows, r, method_of(options),
                                                                      {places.dtype_of_P, places.operand, sums});
}

}  // namespace torchdion::algorithms
