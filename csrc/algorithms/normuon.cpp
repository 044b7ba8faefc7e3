#include "algorithms/table.h"

#include "algorithms/muon_update.h"
#include "algorithms/newton_schulz_options.h"
#include "algorithms/row_variance.h"
#include "linalg/rows.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr Option kNorMuonOptions[] = {
    kMuonLr,         kMuonMomentum,          kMuonNesterov, kVarianceDecay, kNewtonSchulzOption, kNewtonSchulzSteps,
    kAdjustLrOption, precision_of("medium"), kOwnersOption, kMomentumDtype, kVarianceDtype,
};

enum { kNorMuonMomentum, kNorMuonVariance };
constexpr State kNorMuonStates[] = {kOwnMomentum, kRowVariance};

comm::Task<> normuon(Batch batch, Options options) {
  linalg::upload({&batch.X, &batch.G, &batch.states[kNorMuonMomentum]});

  // M = μ M + G;  U = orthonormalize(G + μ M)
  const at::Tensor U = co_await orthonormal_momentum(batch, options);
  const Matrices Us(U);

  // v = β₂ v + (1 − β₂) mean_j U_ij²;  U = ‖U‖ normalize(U / (sqrt(v) + ε))
  const Matrices& v = batch.states[kNorMuonVariance];
  const at::Tensor squares = linalg::row_sums(Us, linalg::RowSum::squares), all_rows;
  const at::Tensor of_rows = co_await row_factors(squares, v, all_rows, batch, options);

  // X = (1 − η λ) X − η factor U
  move_weights_(batch.X, Us, batch, options, {.factor = of_rows});
}

Cost normuon_cost(const BatchShape& shape, const Layout& layout, const Options& options) {
  Cost cost = cost_of_muon(shape, layout, options);
  add_row_factors(cost, shape, shape.rows, layout);
  cost.memory_bytes += shape.numel * element_size(orthonormalized_dtype(shape, options));
  return cost;
}

}  // namespace

// NorMuon (arXiv 2510.05491): Muon's update with rows normalized by running means of their squares, of whole matrices
// wherever their pieces lie.
constexpr Algorithm kNorMuon{
    .name = "normuon",
    .title = "NorMuon",
    .options = kNorMuonOptions,
    .states = kNorMuonStates,
    .cost = normuon_cost,
    .update = normuon,
    .owned_work = work_of_muon,
    .shares_among_copies = true,
    .decouples = always_decouples,
};

}  // namespace torchdion::algorithms
