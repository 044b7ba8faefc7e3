#include "algorithms/power_iteration.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "algorithms/cost.h"
#include "algorithms/exchange.h"
#include "algorithms/truncated_svd.h"
#include "comm/sums.h"
#include "linalg/axpby.h"
#include "linalg/backend.h"
#include "linalg/column_normalize.h"
#include "linalg/copy.h"
#include "linalg/factor_dtypes.h"
#include "linalg/gemm.h"
#include "linalg/rates.h"
#include "linalg/residual.h"
#include "linalg/scale.h"
#include "words.h"

namespace torchdion::algorithms {

using comm::Order;
using linalg::Matrices;

namespace {

enum { kCols, kReplicas };  // among the axes of those who orthonormalize

// R's columns are nearly orthogonal. The triangle of this method has a positive diagonal: no column of the factor is
// turned.
constexpr Orthonormalize kMethodOfRight = Orthonormalize::cholesky_qr;

Precision precision_asked(const Options& options) {
  return enumerator<Precision>(kPrecision, options.text("precision"));
}

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

// The factors of the weights' update.
struct UpdateFactors {
  linalg::Factor update, keep;
};

linalg::FactorRule rule_of_factors(const Batch& batch, const Options& options) {
  return {batch.shape_factor, options.number("lr"), options.number("weight_decay"), batch.multipliers,
          batch.gradients.left_out};
}

// Those of X, numbers or where they lie on the device.
UpdateFactors factors_of(const Batch& batch, const Options& options) {
  if (!batch.multipliers.defined() && !batch.gradients.left_out) {
    const linalg::UpdateFactors all = linalg::update_factors(batch.shape_factor, options.number("lr"),
                                                             options.number("weight_decay"), /*left_out=*/false);
    return {all.update, all.keep};
  }
  const at::Tensor all = linalg::device_factors(rule_of_factors(batch, options), batch.workspace.options());
  return {linalg::Factor(all.narrow(0, 0, 1)), linalg::Factor(all.narrow(0, 1, 1))};
}

// True where weights are moved by the update itself, which is put together first: they decay by its signs, it has signs
// of its own, or weights are rounded to 16 bits, which they should be only once.
bool needs_update(const BatchShape& shape, std::optional<Residual> residual, const Options& options) {
  const bool rounds_twice = residual == Residual::scaled && c10::elementSize(shape.parameter) == 2;
  return options.flag("cautious_wd") || residual == Residual::sign || rounds_twice;
}

// Entries of updates that are put together at once: what a CPU's caches hold, or what keeps a GPU busy.
int64_t entries_at_once(const BatchShape& shape) {
  const int64_t entries = shape.device.is_cpu() ? int64_t{1} << 18 : int64_t{1} << 24;
  return std::min(shape.count * shape.rows * shape.cols, std::max({entries, shape.rows, shape.cols}));
}

// The operands of updates, all as one of the matrices lies in memory: with contiguous rows.
struct Lying {
  Matrices X, B, M, of_update, right_of_update, of_rest, right_of_rest;  // update: of · rightᵀ

  Lying(const Batch& batch, const PowerIteration& iteration, const Matrices& momentum, const Matrices& like)
      : X(batch.X),
        B(iteration.B),
        M(momentum),
        of_update(iteration.factors.P),
        right_of_update(iteration.factors.update),
        of_rest(iteration.factors.P),
        right_of_rest(iteration.factors.R) {
    if (like.row_major()) return;
    for (Matrices* matrices : {&X, &B, &M}) *matrices = matrices->t();
    std::swap(of_update, right_of_update);
    std::swap(of_rest, right_of_rest);
  }

  // Rows of some of the matrices.
  Lying part(int64_t begin, int64_t end, int64_t first, int64_t rows) const {
    Lying part = *this;
    for (Matrices* matrices : {&part.X, &part.B, &part.M, &part.of_update, &part.of_rest}) {
      *matrices = matrices->slice(begin, end).narrow(first, rows);
    }
    for (Matrices* matrices : {&part.right_of_update, &part.right_of_rest}) *matrices = matrices->slice(begin, end);
    return part;
  }
};

// Calls f(part, room for its update, the first of its matrices, how many) for parts that the end of the workspace
// holds.
template <class F>
void for_each_part(const Batch& batch, const Lying& all, const F& f) {
  const int64_t room = entries_at_once(batch.shape), count = all.X.count(), rows = all.X.rows, cols = all.X.cols;
  if (all.X.numel() == 0) return;  // a rank may have none of a matrix's rows or columns
  const int64_t height = std::clamp<int64_t>(room / cols, 1, rows);
  const int64_t at_once = height == rows ? std::clamp<int64_t>(room / (rows * cols), 1, count) : 1;
  const at::Tensor place =
      batch.workspace.narrow(0, batch.workspace.numel() - at_once * height * cols, at_once * height * cols);
  Matrices U(place.view({at_once, height, cols}));
  linalg::upload({&U});
  for (int64_t i = 0; i < count; i += at_once) {
    const int64_t many = std::min(at_once, count - i);
    for (int64_t row = 0; row < rows; row += height) {
      const int64_t high = std::min(height, rows - row);
      f(all.part(i, i + many, row, high), U.slice(0, many).narrow(0, high), i, many);
    }
  }
}

linalg::DirectionRule rule_of_weights(const Options& options) {
  linalg::DirectionRule rule;
  rule.cautious = options.flag("cautious_wd");
  return rule;
}

const float* unchanged_from(const PowerIteration& iteration, int64_t first) {
  return iteration.unchanged ? iteration.unchanged + first : nullptr;
}

// Moves weights by updates that are put together, part by part.
void move_by_updates_(const Batch& batch, const PowerIteration& iteration, const Options& options) {
  const at::Tensor factors = linalg::device_factors(rule_of_factors(batch, options), batch.workspace.options());
  const linalg::DirectionRule rule = rule_of_weights(options);
  const at::Tensor &scales = iteration.residual_scales, one = at::ones({2}, batch.workspace.options());
  for_each_part(batch, Lying(batch, iteration, iteration.B, batch.X),
                [&](const Lying& part, const Matrices& U, int64_t first, int64_t count) {
                  linalg::gemm_(U, part.of_update, part.right_of_update.t(), 1, 0, iteration.precision);
                  if (scales.defined()) {
                    linalg::axpby_(U, part.B, one, nullptr, {}, {}, scales.narrow(0, first, count));
                  }
                  linalg::axpby_(part.X, U, factors, unchanged_from(iteration, first), rule);
                });
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
    const int64_t of_B = shape.count * shape.rows * shape.cols, of_P = shape.count * shape.rows * size.r,
                  of_Q = shape.count * shape.cols * size.r;
    const bool copies_P = has_copies && (is_summed(layout, size) || method_of(options) == Orthonormalize::qr);
    if (copies_P) dtype_of_P = shape.computing;
    const auto place = [&](int64_t numel, at::ScalarType dtype) {
      const auto per = static_cast<int64_t>(c10::elementSize(shape.computing) / c10::elementSize(dtype));
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
    if (takes_svd(options)) svd = place(room_for_svd(shape), shape.computing);
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

int64_t class_of_step(int64_t step, const Options& options) {
  if (method_of(options) == Orthonormalize::rcqr) return step;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(step)));
}

void check_orthonormalize(const Layout& layout, bool transposed, bool, const Options& options,
                          const std::string& name) {
  if (options.text("orthonormalize") != "qr" || layout.rows.absent()) return;
  Option others = kOrthonormalizeOption;
  others.allowed.choices.all = others.allowed.choices.all.first(3);
  const Choice& orientation = kOrientationNames[transposed ? 0 : 1];
  TORCH_CHECK_VALUE(false, prefix(), others.name, " must be ", words_of(others), " for ", name, ", whose ",
                    transposed ? "columns" : "rows", " are cut (", assigned(kOrientationOption, orientation.name),
                    "), got ", shown(kOrthonormalizeOption, std::string_view("qr")));
}

at::ScalarType operand_dtype(const BatchShape& shape, const Options& options) {
  if (takes_svd(options)) return shape.computing;
  return linalg::factor_dtype(shape.device, shape.computing, precision_asked(options));
}

bool is_apart(at::ScalarType momentum, const BatchShape& shape, const Options& options) {
  const at::ScalarType operand = operand_dtype(shape, options);
  return operand != shape.computing && operand != momentum;
}

int64_t workspace_of_iteration(const BatchShape& shape, const Layout& layout, const IterationSize& size,
                               const Options& options) {
  return Places(shape, layout, size, options).end;
}

PowerIteration power_iteration_of(const Batch& batch, const Matrices& momentum, const Matrices& Q,
                                  const IterationSize& size, int64_t offset, const at::Tensor& unchanged,
                                  const Options& options) {
  const int64_t count = momentum.count(), m = momentum.rows, n = momentum.cols, r = size.r;
  const Places places(batch.shape, batch.layout, size, options);
  const auto room = [&](int64_t begin, at::IntArrayRef sizes, at::ScalarType dtype) {
    const int64_t numel = c10::multiply_integers(sizes);
    const auto per = static_cast<int64_t>(c10::elementSize(batch.shape.computing) / c10::elementSize(dtype));
    const at::Tensor whole = batch.workspace.narrow(0, offset + begin, (numel + per - 1) / per);
    return (per == 1 ? whole : whole.view(dtype)).narrow(0, 0, numel).view(sizes);
  };
  PowerIteration iteration;
  iteration.B = momentum;
  if (size.apart && momentum.row_major()) {
    iteration.B = Matrices(room(places.B, {count, m, n}, places.operand));
  } else if (size.apart) {
    iteration.B = Matrices(room(places.B, {count, n, m}, places.operand)).t();
  }
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
    iteration.room_for_svd = room(places.svd, {room_for_svd(batch.shape)}, batch.shape.computing);
  } else if (!size.averages && !iteration.owners.empty()) {
    iteration.owners[kReplicas] = {iteration.owners[kCols][batch.layout.cols.rank]};
  }
  iteration.orthonormalize = orthonormalize_options(batch, options);
  iteration.left_out = batch.gradients.left_out;
  if (unchanged.defined()) iteration.unchanged = unchanged.const_data_ptr<float>();
  iteration.precision = precision_asked(options);
  iteration.residual = size.residual;
  iteration.orthonormalizes_R = orthonormalizes_right_factor(options);
  return iteration;
}

namespace {

std::vector<Matrices*> lists_of(std::vector<Matrices>& states, const std::vector<PowerIteration*>& iterations) {
  std::vector<Matrices*> lists;
  for (Matrices& state : states) lists.push_back(&state);
  for (PowerIteration* iteration : iterations) {
    Factors& factors = iteration->factors;
    lists.insert(lists.end(), {&iteration->B, &iteration->own_Q, &iteration->Ps, &iteration->Rs, &factors.P, &factors.Q,
                               &factors.R, &factors.update});
  }
  return lists;
}

}  // namespace

void upload(std::vector<Matrices>& states, const std::vector<PowerIteration*>& iterations) {
  linalg::upload(lists_of(states, iterations));
}

void upload_all(Batch& batch, const std::vector<PowerIteration*>& iterations) {
  std::vector<Matrices*> lists = lists_of(batch.states, iterations);
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
  const bool may_stay = iteration.left_out || iteration.unchanged;
  if (iteration.room_for_svd.defined()) {
    co_await left_singular_vectors_(iteration.P, B, iteration.room_for_svd, layout, iteration.shape);
    if (may_stay) linalg::clear_(P, iteration.left_out, iteration.unchanged);
    if (!layout.cols.absent()) iteration.scale = at::ones({B.count()}, iteration.P.options());  // on all ranks the same
  } else {
    if (factors.copy_of_Q.defined()) linalg::copy_(factors.Q, iteration.Q());
    multiply_(P, B, factors.Q, mean, iteration);
    if (may_stay) linalg::clear_(P, iteration.left_out, iteration.unchanged);
    iteration.scale = co_await orthonormalize_sum_(iteration.P, layout, iteration.shape.m, iteration.orthonormalize,
                                                   iteration.owners);
  }

  // R = Bᵀ P
  if (factors.copy_of_P.defined()) linalg::copy_(factors.P, P);
  multiply_(R, B.t(), factors.P, mean, iteration);
  co_await comm::sum(iteration.R, rows, iteration.orthonormalize.order);
  co_await comm::sum(iteration.R, replicas, Order::any);
  co_return iteration;
}

namespace {

// V ← the orthonormal factor of itself.
comm::Task<> orthonormalize_right_(at::Tensor V, PowerIteration iteration) {
  const Axis cols = iteration.layout.cols;
  linalg::OrthonormalizeOptions how = iteration.orthonormalize;
  how.counts = {};
  how.noise =
      linalg::noise_of_step(V.scalar_type(), iteration.shape.m, how.precision, how.noise.steps, how.noise.steps_before);
  how.method = kMethodOfRight;
  if (V.scalar_type() == at::kDouble && !cols.absent()) how.scale = at::ones({V.size(0)}, V.options());
  const int64_t first = cols.piece(iteration.shape.n).begin;
  co_await linalg::orthonormalize_(V, cols, first, iteration.shape.n, how);
}

// update ← update − R / σ
void subtract_scaled_(const PowerIteration& iteration) {
  const at::Tensor factors = at::ones({2}, iteration.residual_scales.options());
  factors.narrow(0, 0, 1).fill_(-1);
  linalg::axpby_(iteration.factors.update, iteration.Rs, factors, nullptr, {}, {}, iteration.residual_scales);
}

}  // namespace

comm::Task<PowerIteration> find_right_factor(PowerIteration iteration) {
  const Axis rows = iteration.layout.rows, cols = iteration.layout.cols;
  const comm::Order order = iteration.orthonormalize.order;
  const bool measures = iteration.residual == Residual::scaled;
  const Factors& factors = iteration.factors;
  at::Tensor V = iteration.R, squares, scale;
  if (iteration.R.scalar_type() == at::kDouble) {  // M is yet to get R as it is
    V = iteration.R.clone();
    scale = linalg::scale_columns_(V, iteration.scale);
  }
  if (!cols.absent() || measures) squares = linalg::column_square_sums(Matrices(V));
  if (!cols.absent()) {
    co_await comm::sum(squares, cols, order);
  }
  if (measures) {
    iteration.residual_scales = linalg::residual_scales(
        squares, scale, linalg::rounding_noise(V.scalar_type(), iteration.shape.n, iteration.precision), V.options());
  }
  if (iteration.orthonormalizes_R) {
    V = factors.room_for_update.copy_(V);
    co_await orthonormalize_right_(V, iteration);
    squares = linalg::column_square_sums(Matrices(V));
    if (!cols.absent()) {
      co_await comm::sum(squares, cols, order);
    }
  }
  const bool is_R = V.is_same(iteration.R);
  linalg::NormalizedOutputs outputs;
  if (factors.copy_of_Q.defined()) outputs.update = factors.copy_of_Q;
  if (factors.room_for_update.defined() && !iteration.orthonormalizes_R) outputs.update = factors.room_for_update;
  if (is_R) {
    outputs.copy_of_R = factors.copy_of_R;
    outputs.scales = iteration.residual_scales;
  } else if (factors.copy_of_R.defined()) {
    linalg::copy_(factors.R, iteration.Rs);
  }
  linalg::column_normalize_(iteration.Q(), Matrices(V), squares, outputs);
  if (measures && !is_R) subtract_scaled_(iteration);
  if (rows.absent()) co_return iteration;
  const Piece own = rows.piece(iteration.whole_Q.size(2));
  linalg::copy_(iteration.own_Q, Matrices(iteration.whole_Q.narrow(2, own.begin, own.size)));
  co_return iteration;
}

void add_product_(const Matrices& M, const PowerIteration& iteration, double alpha) {
  linalg::gemm_(M, iteration.factors.P, iteration.factors.R.t(), alpha, 1, iteration.precision);
}

void update_weights_(const Batch& batch, const PowerIteration& iteration, const at::Tensor& unchanged,
                     const Options& options) {
  if (needs_update(batch.shape, iteration.residual, options)) return move_by_updates_(batch, iteration, options);
  const Matrices &X = batch.X, &P = iteration.factors.P, Qt = iteration.factors.update.t();
  const UpdateFactors factors = factors_of(batch, options);
  if (iteration.residual_scales.defined()) {  // L, and then what the factors change of that: P is zero where X stays
    const at::Tensor both = linalg::device_factors(rule_of_factors(batch, options), batch.workspace.options());
    linalg::axpby_(X, iteration.B, both, unchanged.defined() ? iteration.unchanged : nullptr, {}, {},
                   iteration.residual_scales);
    const linalg::Factor& update = factors.update;
    linalg::gemm_(X, P, Qt, update, update.device.defined() ? linalg::Factor(at::ones_like(update.device)) : 1,
                  iteration.precision);
    return;
  }
  if (!unchanged.defined()) {
    linalg::gemm_(X, P, Qt, factors.update, factors.keep, iteration.precision);
    return;
  }
  // A product has one factor for all its matrices: where some stay, each is a product of its own.
  const at::TensorOptions of_numbers = unchanged.options().dtype(P.dtype);
  const auto number = [&](const linalg::Factor& factor) {
    return factor.device.defined() ? factor.device : at::full({1}, factor.value, of_numbers);
  };
  const at::Tensor update = number(factors.update);
  const at::Tensor keep = at::where(unchanged.ne(0), at::ones({1}, of_numbers), number(factors.keep));
  for (int64_t i = 0; i < X.count(); ++i) {
    linalg::gemm_(X.slice(i, i + 1), P.slice(i, i + 1), Qt.slice(i, i + 1), linalg::Factor(update),
                  linalg::Factor(keep.narrow(0, i, 1)), iteration.precision);
  }
}

void update_weights_by_signs_(const Batch& batch, const PowerIteration& iteration, const Matrices& M, double feedback,
                              const Options& options) {
  const at::TensorOptions numbers = batch.workspace.options();
  const at::Tensor factors = linalg::device_factors(rule_of_factors(batch, options), numbers);
  const linalg::DirectionRule rule = rule_of_weights(options);
  const auto root = [](int64_t size) { return std::sqrt(static_cast<double>(size)); };
  const double longest = root(iteration.shape.m) + root(iteration.shape.n);  // of signs that are nearly random
  const double noise =
      linalg::rounding_noise(batch.shape.computing, iteration.shape.n, iteration.orthonormalize.precision);
  const bool is_in_place = iteration.B.data == M.data, is_apart = feedback != 0 && !is_in_place;
  if (!is_in_place) {
    const Lying all(batch, iteration, M, batch.X);
    if (linalg::move_by_signs_({all.X, all.M, all.B, all.of_rest, all.right_of_rest, all.of_update, all.right_of_update,
                                factors, iteration.unchanged, 1 / longest, feedback, noise, rule.cautious})) {
      return;
    }
  }
  const at::Tensor subtract = at::ones({2}, numbers);
  if (is_apart) subtract.narrow(0, 0, 1).fill_(-feedback);
  for_each_part(batch, Lying(batch, iteration, M, iteration.B),
                [&](const Lying& part, const Matrices& U, int64_t first, int64_t) {
                  linalg::gemm_(U, part.of_rest, part.right_of_rest.t(), 1, 0, iteration.precision);
                  if (is_apart) linalg::axpby_(part.M, U, subtract);
                  linalg::take_signs_(U, part.B, is_in_place ? feedback : 0, noise);
                  linalg::gemm_(U, part.of_update, part.right_of_update.t(), 1, 1 / longest, iteration.precision);
                  linalg::axpby_(part.X, U, factors, unchanged_from(iteration, first), rule);
                });
}

OwnedWork work_of_iterations(const BatchShape& shape, const Layout& layout, const Options& options) {
  if (takes_svd(options)) return {axes_of_singular_vectors(layout), svd_operations(shape.m, shape.n)};
  if (!layout.rows.absent()) return {};
  int64_t operations = 0;
  for (const int64_t r : shape.ranks) operations += orthonormalize_operations(shape, r, options);
  return {{layout.cols, shape.decoupled ? layout.replicas : Axis()}, operations};
}

int64_t workspace_of_update(const BatchShape& shape, const IterationSize& size, const Options& options) {
  return needs_update(shape, size.residual, options) ? entries_at_once(shape) : 0;
}

int64_t memory_bytes_of_update(const BatchShape& shape, const IterationSize& size, at::ScalarType momentum,
                               const Options& options) {
  const auto bytes = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const int64_t weight = bytes(shape.parameter), update = bytes(shape.computing);
  const int64_t of_B = bytes(size.apart ? operand_dtype(shape, options) : momentum);
  if (size.residual == Residual::sign) {  // P Rᵀ: written, read; signs: written, read; the update: written, read
    return shape.numel * (2 * weight + of_B + (size.apart ? 7 : 6) * update);
  }
  const bool has_residual = size.residual.has_value();
  if (needs_update(shape, size.residual, options)) {
    return shape.numel * (2 * weight + 2 * update + (has_residual ? 2 * update + of_B : 0));
  }
  return shape.numel * (2 * weight + (has_residual ? 2 * weight + of_B : 0));
}

void add_average(Cost& cost, const BatchShape& shape, const Layout& layout) {
  const auto element = static_cast<int64_t>(c10::elementSize(shape.computing));
  cost.replicas = all_reduced(shape.count * shape.rows * shape.cols, element, layout.replicas);
}

namespace {

// Adds the cost of R's orthonormal factor, in which every rank that has rows of R takes part.
void add_right_factor(Cost& cost, const BatchShape& shape, const Layout& layout, int64_t r, const Options& options) {
  if (!orthonormalizes_right_factor(options)) return;
  const auto fp64 = int64_t{8};
  const int64_t count = shape.count;
  const double oversample = options.number("rcqr_oversample");
  if (!layout.cols.absent()) {  // the orthonormalization, and the norms of its columns
    const int64_t summed = linalg::orthonormalize_elements(r, shape.n, kMethodOfRight, oversample, shape.computing) + r;
    add(cost.cols, {count * summed, ring(2 * count * summed * fp64, layout.cols)});
  }
  cost.operations +=
      count * linalg::orthonormalize_operations(shape.cols, r, shape.n, kMethodOfRight, oversample, shape.computing);
  const at::ScalarType operand = operand_dtype(shape, options);
  const at::ScalarType sums = linalg::sum_dtype_on_gpu(operand, precision_asked(options));
  cost.temporary_bytes +=
      count * linalg::orthonormalize_bytes_on_gpu(shape.cols, r, kMethodOfRight, {shape.computing, operand, sums});
}

}  // namespace

void add_iteration(Cost& cost, const BatchShape& shape, const Layout& layout, const IterationSize& size,
                   const Options& options) {
  const auto element = static_cast<int64_t>(c10::elementSize(shape.computing)), fp64 = int64_t{8};
  const int64_t count = shape.count, r = size.r, P = shape.rows * r, R = shape.cols * r;
  const bool averages = size.averages && !layout.replicas.absent();
  cost.workspace += workspace_of_iteration(shape, layout, size, options);
  add_right_factor(cost, shape, layout, r, options);
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
