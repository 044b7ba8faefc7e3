#include "algorithms/dion.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "algorithms/batch.h"
#include "algorithms/cost.h"
#include "algorithms/exchange.h"
#include "algorithms/shared.h"
#include "linalg/accumulate.h"
#include "linalg/backend.h"
#include "linalg/cholesky_qr.h"
#include "linalg/column_normalize.h"
#include "linalg/copy.h"
#include "linalg/gemm.h"
#include "linalg/orthonormalize.h"
#include "linalg/scale.h"
#include "words.h"

namespace torchdion::algorithms {

using comm::Order;
using linalg::Matrices;

namespace {

constexpr Choice kOrthonormalizeNames[] = {
    {"auto", "automatic"}, {"rcqr", "rcqr"}, {"cholesky_qr", "cholesky_qr"}, {"qr", "qr"}};
constexpr Choices kOrthonormalize{"Orthonormalize", kOrthonormalizeNames};

constexpr Option kOrientationOption{"orientation", std::string_view("right"), one_of(kOrientation),
                                    "Algorithm 4 (Q is m×r) or Algorithms 1 and 3 (Q is n×r)"};
constexpr Option kOrthonormalizeOption{.name = "orthonormalize",
                                       .initial = std::string_view("auto"),
                                       .allowed = one_of(kOrthonormalize),
                                       .doc = "how P is orthonormalized: rcqr is Algorithm 2, qr Householder's",
                                       .waits = std::string_view("qr")};
constexpr Option kDionOptions[] = {
    {"mu", 0.95, kBelowOne, "momentum decay μ (arXiv 2504.05295, Algorithm 1)"},
    {"rank_fraction", 1.0, kFraction, "r / min(m, n); 0.25 is the usual choice for large models"},
    {"rank_multiple_of", int64_t{1}, kCounting, "r is rounded up to a multiple of this, at most min(m, n)"},
    kOrientationOption,
    kOrthonormalizeOption,
    {"rcqr_oversample", 1.25, kAtLeastOne, "k / r: rows of the sketch over columns of P (Algorithm 2)"},
    {"seed", int64_t{0}, kAnyInteger, "of Q's start and of sketches"},
    kMomentumDtype,
    {"Q_dtype", {}, kDtypeOrNone, "dtype of Q"},
};

enum { kMomentum, kQ };
constexpr State kDionStates[] = {
    {.name = "momentum", .holder = Holder::each_replica, .dtype_option = "momentum_dtype"},
    {.name = "Q", .shape = StateShape::factor, .start = Start::normal, .dtype_option = "Q_dtype"},
};

struct Hyperparameters {
  double lr, mu, weight_decay;
  bool maximize;
  Orthonormalize orthonormalize;
  double oversample;
  int64_t seed;
  Precision precision;

  explicit Hyperparameters(const Options& options)
      : lr(options.number("lr")),
        mu(options.number("mu")),
        weight_decay(options.number("weight_decay")),
        maximize(options.flag("maximize")),
        orthonormalize(enumerator<Orthonormalize>(kOrthonormalize, options.text("orthonormalize"))),
        oversample(options.number("rcqr_oversample")),
        seed(options.integer("seed")),
        precision(enumerator<Precision>(kPrecision, options.text("precision"))) {}
};

linalg::OrthonormalizeOptions orthonormalize_options(const Batch& batch, const Hyperparameters& hyper) {
  linalg::OrthonormalizeOptions options;
  options.method = hyper.orthonormalize;
  options.oversample = hyper.oversample;
  options.random = linalg::RandomMatrix::sketch(hyper.seed, batch.step);
  options.random.steps_before = batch.steps_before;
  options.precision = linalg::precision_on(batch.X.device, hyper.precision);
  const at::ScalarType dtype = batch.workspace.scalar_type();
  const double rounding = linalg::rounding_noise(dtype, batch.shape.n, options.precision);
  options.noise = {rounding, rounding, linalg::signal_margin(dtype, options.precision)};
  options.order = batch.order;
  options.counts = batch.counts;
  return options;
}

// linalg::UpdateFactors as the product takes them.
struct Factors {
  linalg::Factor update, keep;
};

Factors factors_of(const Batch& batch, const Hyperparameters& hyper) {
  if (!batch.multipliers.defined() && !batch.gradients.left_out) {
    const linalg::UpdateFactors all =
        linalg::update_factors(batch.shape_factor, hyper.lr, hyper.weight_decay, /*left_out=*/false);
    return {all.update, all.keep};
  }
  const linalg::FactorRule rule{batch.shape_factor, hyper.lr, hyper.weight_decay, batch.multipliers,
                                batch.gradients.left_out};
  const at::Tensor all = linalg::device_factors(rule, batch.workspace.options());
  return {linalg::Factor(all.narrow(0, 0, 1)), linalg::Factor(all.narrow(0, 1, 1))};
}

// X ← keep X + update P Qᵀ. A product has one factor for all its matrices: where some stay, each is a product of its
// own.
void update_(const Matrices& X, const Matrices& P, const Matrices& Qt, const Factors& factors,
             const at::Tensor& unchanged, Precision precision) {
  if (!unchanged.defined()) {
    linalg::gemm_(X, P, Qt, factors.update, factors.keep, precision);
    return;
  }
  const at::TensorOptions options = unchanged.options().dtype(P.dtype);
  const auto number = [&](const linalg::Factor& factor) {
    return factor.device.defined() ? factor.device : at::full({1}, factor.value, options);
  };
  const at::Tensor update = number(factors.update);
  const at::Tensor keep = at::where(unchanged.ne(0), at::ones({1}, options), number(factors.keep));
  for (int64_t i = 0; i < X.count(); ++i) {
    linalg::gemm_(X.slice(i, i + 1), P.slice(i, i + 1), Qt.slice(i, i + 1), linalg::Factor(update),
                  linalg::Factor(keep.narrow(0, i, 1)), precision);
  }
}

// Where R and the whole Q begin in the workspace, after P, in elements: where tensor cores can read them.
struct Offsets {
  static constexpr int64_t kAligned = 16;
  int64_t R, Q, end;

  Offsets(const BatchShape& shape, const Layout& layout) {
    const int64_t of_Q = shape.count * shape.cols * shape.r;
    R = (shape.count * shape.rows * shape.r + kAligned - 1) / kAligned * kAligned;
    Q = R + of_Q;
    end = layout.rows.absent() ? Q : Q + of_Q;
  }
};

comm::Task<> dion(Batch batch, Options options) {
  const Hyperparameters hyper(options);
  const Matrices &X = batch.X, &M = batch.states[kMomentum], &B = M;
  const int64_t count = X.count(), m = X.rows, n = X.cols, r = batch.shape.r;
  Layout layout = batch.layout;
  const Axis rows = layout.rows, cols = layout.cols, replicas = layout.replicas;
  const Axis dense = batch.shape.decoupled ? Axis() : replicas, compressed = batch.shape.decoupled ? replicas : Axis();
  layout.replicas = compressed;
  const double mean = 1.0 / compressed.size;
  at::Tensor P = batch.workspace.narrow(0, 0, count * m * r).view({count, m, r});
  const Offsets offsets(batch.shape, batch.layout);
  at::Tensor R = batch.workspace.narrow(0, offsets.R, count * n * r).view({count, n, r});
  Matrices Ps(P), Rs(R);
  linalg::upload({&batch.X, &batch.G, &batch.states[kMomentum], &batch.states[kQ], &Ps, &Rs});
  const Matrices own_Q = batch.states[kQ];  // where rows are cut, a piece of its columns
  Matrices Q = own_Q;

  // B = M + G, where M lies
  at::Tensor unchanged;
  if (!batch.unchanged.empty()) unchanged = at::cat(batch.unchanged);
  linalg::GradientRule gradients = batch.gradients;
  if (hyper.maximize) gradients.factor *= -1;
  if (unchanged.defined()) gradients.unchanged = unchanged.const_data_ptr<float>();
  linalg::accumulate_(B, batch.G, gradients);
  co_await average_(B, batch.workspace, dense, gradients.left_out, unchanged);

  // P = orthonormalize(B Q)
  at::Tensor whole_Q;
  if (!rows.absent()) {
    whole_Q = batch.workspace.narrow(0, offsets.Q, count * n * r).view({count, n, r});
    co_await gather_columns_(whole_Q, own_Q, R, rows);
    Q = Matrices(whole_Q);
  }
  linalg::gemm_(Ps, B, Q, mean, 0, hyper.precision);
  // Without P nothing else of a matrix changes: R is zero, and a zero column of R keeps its column of Q.
  if (gradients.left_out || gradients.unchanged) linalg::clear_(Ps, gradients.left_out, gradients.unchanged);
  const linalg::OrthonormalizeOptions how = orthonormalize_options(batch, hyper);
  const at::Tensor scale = co_await orthonormalize_sum_(P, layout, batch.shape.m, how, batch.shape.owners);

  // R = Bᵀ P
  linalg::gemm_(Rs, B.t(), Ps, mean, 0, hyper.precision);
  co_await comm::sum(R, rows, batch.order);
  co_await comm::sum(R, compressed, Order::any);

  // M = B − (1 − μ) P Rᵀ
  linalg::gemm_(M, Ps, Rs.t(), -(1 - hyper.mu), 1, hyper.precision);

  // Q = column_normalize(R)
  if (R.scalar_type() == at::kDouble) linalg::scale_columns_(R, scale);
  at::Tensor squares;
  if (!cols.absent()) {
    squares = linalg::column_square_sums(Rs);
    co_await comm::sum(squares, cols, batch.order);
  }
  linalg::column_normalize_(Q, Rs, squares);

  // X = (1 − η λ) X − η sqrt(m/n) P Qᵀ
  update_(X, Ps, Q.t(), factors_of(batch, hyper), unchanged, hyper.precision);
  if (!rows.absent()) {
    const Piece piece = rows.piece(r);
    linalg::copy_(own_Q, Matrices(whole_Q.narrow(2, piece.begin, piece.size)));
  }
}

int64_t orthonormalize_operations(const BatchShape& shape, const Hyperparameters& hyper) {
  return linalg::orthonormalize_operations(shape.rows, shape.r, shape.m, hyper.orthonormalize, hyper.oversample,
                                           shape.computing);
}

// Where whole columns of P are at hand, the ranks that sum them have each matrix orthonormalized by one.
OwnedWork orthonormalization(const BatchShape& shape, const Layout& layout, const Options& options) {
  if (!layout.rows.absent()) return {};
  const Axis replicas = shape.decoupled ? layout.replicas : Axis();
  return {{layout.cols, replicas}, orthonormalize_operations(shape, Hyperparameters(options))};
}

// The formulas of Table 2 and Appendix H of the paper for the variants that are built here. Sketches, Gram matrices and
// column norms are summed in FP64. What is linear in the number of entries counts as passes over memory.
Cost dion_cost(const BatchShape& shape, const Layout& layout, const Options& options) {
  const Hyperparameters hyper(options);
  const auto element = static_cast<int64_t>(c10::elementSize(shape.computing)), fp64 = int64_t{8};
  const int64_t count = shape.count, r = shape.r, P = shape.rows * r, R = shape.cols * r;
  Cost cost;
  if (!layout.rows.absent()) {  // Q, R and the orthonormalization
    const int64_t others =
        linalg::orthonormalize_elements(r, shape.m, hyper.orthonormalize, hyper.oversample, shape.computing);
    cost.rows = {count * (2 * R + others), ring(count * (3 * R * element + 2 * others * fp64), layout.rows)};
  }
  if (!layout.cols.absent()) {  // P and the column norms
    cost.cols = {count * (P + r), ring(2 * count * (P * element + r * fp64), layout.cols)};
  }
  // Matrices of which this rank has P, for the replicas to sum, and those that it orthonormalizes.
  const int64_t summed = shape.owners.empty() ? count : shape.owners[0][layout.cols.rank];
  const int64_t orthonormalized =
      shape.owners.empty() ? count : shape.owners[1][shape.decoupled ? layout.replicas.rank : 0];
  if (!layout.replicas.absent()) {
    const int64_t elements = shape.decoupled ? summed * P + count * R : count * shape.rows * shape.cols;
    cost.replicas = all_reduced(elements, element, layout.replicas);
  }
  cost.operations = count * 8 * shape.rows * shape.cols * r + orthonormalized * orthonormalize_operations(shape, hyper);
  const auto momentum = static_cast<int64_t>(c10::elementSize(shape.states[kMomentum]));
  const auto weight = static_cast<int64_t>(c10::elementSize(shape.parameter));
  // M: read and written by M + G and by the error feedback, read by two products; X: read and written
  cost.memory_bytes = shape.numel * (6 * momentum + 3 * weight);
  cost.workspace = Offsets(shape, layout).end;
  cost.temporary_bytes =
      count * linalg::orthonormalize_bytes_on_gpu(shape.rows, r, hyper.orthonormalize, shape.computing);
  return cost;
}

// A sketch is keyed by the step.
bool has_sketch(const Options& options) { return options.text("orthonormalize") == "rcqr"; }

// (m + n) r elements of P and R, or m n of M.
bool factors_are_fewer(int64_t rows, int64_t cols, int64_t r) { return (rows + cols) * r < rows * cols; }

// Householder QR has no distributed form here: P must have all of its rows on each rank.
void check_orthonormalize(const Layout& layout, bool transposed, const Options& options, const std::string& name) {
  if (options.text("orthonormalize") != "qr" || layout.rows.absent()) return;
  Option others = kOrthonormalizeOption;
  others.allowed.choices.all = others.allowed.choices.all.first(3);
  const Choice& orientation = kOrientationNames[transposed ? 0 : 1];
  TORCH_CHECK_VALUE(false, prefix(), others.name, " must be ", words_of(others), " for ", name, ", whose ",
                    transposed ? "columns" : "rows", " are cut (", assigned(kOrientationOption, orientation.name),
                    "), got ", shown(kOrthonormalizeOption, std::string_view("qr")));
}

}  // namespace

constexpr Algorithm kDion{
    .name = "dion",
    .title = "Dion",
    .takes = Takes::matrices,
    .options = kDionOptions,
    .states = kDionStates,
    .cost = dion_cost,
    .update = dion,
    .owned_work = orthonormalization,
    .needs_equal_steps = has_sketch,
    .decouples = factors_are_fewer,
    .check_layout = check_orthonormalize,
};

}  // namespace torchdion::algorithms
