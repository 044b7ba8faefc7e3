#include "algorithms/table.h"

#include "algorithms/row_variance.h"
#include "algorithms/selected_update.h"

namespace torchdion::algorithms {

namespace {

constexpr Option kDion3Options[] = {
    kMuonLr,         kSelectedFraction,      kFeedbackDecay, kVarianceDecay, kNewtonSchulzOption, kNewtonSchulzSteps,
    kAdjustLrOption, precision_of("medium"), kOwnersOption,  kMomentumDtype, kVarianceDtype,
};

constexpr State kDion3States[] = {kOwnMomentum, kRowVariance};

}  // namespace

// Dion3: Dion2 of rows alone, with NorMuon's normalization of those that are chosen.
constexpr Algorithm kDion3{
    .name = "dion3",
    .title = "Dion3",
    .options = kDion3Options,
    .states = kDion3States,
    .cost = cost_of_selected,
    .update = update_selected,
    .owned_work = work_of_selected,
    .shares_among_copies = true,
    .decouples = always_decouples,
};

}  // namespace torchdion::algorithms
