#include "algorithms/table.h"

#include "algorithms/muon_update.h"
#include "algorithms/newton_schulz_options.h"

namespace torchdion::algorithms {

using linalg::Matrices;

namespace {

constexpr Option kMuonOptions[] = {
    kMuonLr,         kMuonMomentum,          kMuonNesterov, kNewtonSchulzOption, kNewtonSchulzSteps,
    kAdjustLrOption, precision_of("medium"), kOwnersOption, kMomentumDtype,
};

constexpr State kMuonStates[] = {kOwnMomentum};

comm::Task<> muon(Batch batch, Options options) {
  linalg::upload({&batch.X, &batch.G, &batch.states.front()});

  // M = μ M + G;  U = orthonormalize(G + μ M)
  const at::Tensor U = co_await orthonormal_momentum(batch, options);

  // X = (1 − η λ) X − η factor U
  move_weights_(batch.X, Matrices(U), batch, options);
}

}  // namespace

// Muon (https://kellerjordan.github.io/posts/muon, 2024): the momentum, orthonormalized by Newton–Schulz iterations, of
// whole matrices wherever their pieces lie.
constexpr Algorithm kMuon{
    .name = "muon",
    .title = "Muon",
    .options = kMuonOptions,
    .states = kMuonStates,
    .cost = cost_of_muon,
    .update = muon,
    .owned_work = work_of_muon,
    .shares_among_copies = true,
    .decouples = always_decouples,
};

}  // namespace torchdion::algorithms
