// The power iteration of Dion (arXiv 2504.05295, Algorithms 1, 3 and 4): B ≈ P Rᵀ of rank r.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <optional>
#include <string>

#include "algorithms/batch.h"
#include "algorithms/shared.h"
#include "comm/task.h"
#include "linalg/matrices.h"
#include "linalg/orthonormalize.h"

namespace torchdion::algorithms {

// Options of all algorithms that iterate so.
inline constexpr Choice kOrthonormalizeNames[] = {{"auto", "automatic", Orthonormalize::automatic},
                                                  {"rcqr", "rcqr", Orthonormalize::rcqr},
                                                  {"cholesky_qr", "cholesky_qr", Orthonormalize::cholesky_qr},
                                                  {"qr", "qr", Orthonormalize::qr}};
inline constexpr Choices kOrthonormalize{"Orthonormalize", kOrthonormalizeNames};
// Householder's QR, the last of them, is not for columns that ranks have pieces of.
inline constexpr Choices kOrthonormalizeOfPieces{
    "Orthonormalize", std::span(kOrthonormalizeNames).first(std::size(kOrthonormalizeNames) - 1)};
static_assert(enumerator<Orthonormalize>(kOrthonormalize, std::rbegin(kOrthonormalizeNames)->name) ==
              Orthonormalize::qr);
inline constexpr Option kOrientationOption{
    "orientation", std::string_view("right"), one_of(kOrientation),
    "Algorithm 4 (Q is m×r), Algorithms 1 and 3 (Q is n×r), or of both the one whose P has min(m, n) rows"};
inline constexpr Option kRankMultipleOf{"rank_multiple_of", int64_t{1}, kCounting,
                                        "r is rounded up to a multiple of this, at most min(m, n)"};
inline constexpr Option kOrthonormalizeOption{.name = "orthonormalize",
                                              .initial = std::string_view("auto"),
                                              .allowed = one_of(kOrthonormalize),
                                              .doc = "how P is orthonormalized: rcqr is Algorithm 2, qr Householder's",
                                              .uncaptured = {std::string_view("qr")}};
inline constexpr Option kRcqrOversample{"rcqr_oversample", 1.25, kAtLeastOne,
                                        "k / r: rows of the sketch over columns of P (Algorithm 2)"};
inline constexpr Option kSeed{"seed", int64_t{0}, kAnyInteger, "of Q's start and of sketches"};
inline constexpr Option kQDtype{"Q_dtype", {}, kDtypeOrNone, "dtype of Q"};

inline constexpr State factor_state(std::string_view name, std::string_view rank_option, int64_t draw = 0) {
  return {.name = name,
          .shape = StateShape::factor,
          .start = Start::normal,
          .dtype_option = kQDtype.name,
          .rank_option = rank_option,
          .draw = draw};
}

// Whether P is computed by a singular value decomposition, for a comparison with the power iteration (Appendix B.1).
bool takes_svd(const Options& options);
// Whether the update and the next Q take the QR of R, not its columns at length 1.
bool orthonormalizes_right_factor(const Options& options);

// Householder QR has no distributed form here: P must have all of its rows on each rank.
void check_orthonormalize(const Layout& layout, bool transposed, bool decoupled, const Options& options,
                          const std::string& name);

// Algorithm::class_of_step: sketches need the number itself, noise the next power of two.
int64_t class_of_step(int64_t step, const Options& options);

// What products read: P, Q and R themselves, or, where products of the asked precision read BF16 from memory, copies of
// them in the workspace. `update`, n×r, is what P moves the weights by: the next Q, less what P Rᵀ would move
// them by as a part of the residual. It takes the place of a copy of Q.
struct Factors {
  at::Tensor copy_of_P, copy_of_Q, copy_of_R;  // [count, m, r], [count, n, r], [count, n, r]; undefined: no copy
  at::Tensor room_for_update;                  // [count, n, r], where Q is not the update, and for the QR of R
  linalg::Matrices P, Q, R, update;
};

// One of rank r. `apart`: B has a place in the workspace.
struct IterationSize {
  int64_t r = 0;
  bool apart = false, averages = false;  // averages: replicas take their mean of B by way of the factors
  std::optional<Residual> residual = {};
};

// One power iteration of a batch.
struct PowerIteration {
  linalg::Matrices B, own_Q;  // where rows are cut, own_Q is a piece of Q's columns
  at::Tensor P, R, whole_Q;   // in the workspace: [count, m, r]; [count, n, r]; [count, n, r] where rows are cut
  linalg::Matrices Ps, Rs;    // the same
  Factors factors;
  Layout layout;  // of B; replicas: those whose mean of B is taken by way of the factors
  BatchShape shape;
  std::vector<comm::Shares> owners;  // of the matrices on columns and replicas; none where rows are cut
  linalg::OrthonormalizeOptions orthonormalize;
  linalg::Frozen frozen = {};  // whose P has no signal
  Precision precision = Precision::highest;
  at::Tensor room_for_turned = {};  // as many elements as the larger of P and R: see multiply_()
  at::Tensor room_for_svd = {};     // where P is to be the leading singular vectors of B: as many elements as B has
  IterationSize size = {};
  bool orthonormalizes_R = false;
  at::Tensor residual_scales = {};  // [count]: 1 / σ where the residual is scaled; find_right_factor() finds them

  linalg::Matrices Q() const { return whole_Q.defined() ? linalg::Matrices(whole_Q) : own_Q; }
};

// Where in a workspace, in elements, something may begin that tensor cores are to read: this or the next such place.
inline int64_t aligned(int64_t offset) { return (offset + 15) / 16 * 16; }

// What products read B and the factors in: the computing dtype, or what the device stores for the asked precision.
at::ScalarType operand_dtype(const BatchShape& shape, const Options& options);

// Whether B, of a momentum of this dtype, is to lie apart from it, in the operand dtype.
bool is_apart(at::ScalarType momentum, const BatchShape& shape, const Options& options);

// Matrices in a flat tensor, in the order of the memory of others.
linalg::Matrices laid_out_as(const linalg::Matrices& others, const at::Tensor& flat);

// Elements of the workspace that it takes.
int64_t workspace_of_iteration(const BatchShape& shape, const Layout& layout, const IterationSize& size,
                               const Options& options);

// Of matrices B that lie in the place of a momentum, or apart and in the order of its memory, from Q, in the workspace
// from `offset` on, which is aligned.
PowerIteration power_iteration_of(const Batch& batch, const linalg::Matrices& momentum, const linalg::Matrices& Q,
                                  const IterationSize& size, int64_t offset, const Options& options);

// linalg::upload() of weights, gradients and states, and of all that iterations work on.
void upload_all(Batch& batch, const std::vector<PowerIteration*>& iterations);

// P = orthonormalize(B Q), or the leading left singular vectors of B;  R = Bᵀ P.
comm::Task<PowerIteration> iterate(PowerIteration iteration);

// M ← M + α P Rᵀ, once columns are normalized.
void add_product_(const linalg::Matrices& M, const PowerIteration& iteration, double alpha);

// Who computes P for others: where whole columns of it are at hand, the ranks that sum them have each matrix
// orthonormalized by one.
OwnedWork work_of_iterations(const BatchShape& shape, const Layout& layout, const Options& options);

// Adds the mean of all entries over the replicas.
void add_average(Cost& cost, const BatchShape& shape, const Layout& layout);

// Adds what an iteration of rank r costs, without its products with B: the formulas of Table 2 and Appendix H of the
// paper for the variants that are built here. Sketches, Gram matrices and column norms are summed in FP64.
void add_iteration(Cost& cost, const BatchShape& shape, const Layout& layout, const IterationSize& size,
                   const Options& options);

}  // namespace torchdion::algorithms
