#include "algorithms/table.h"

#include <torchdion/options.h>

#include "algorithms/selected_update.h"

namespace torchdion::algorithms {

namespace {

constexpr Choice kSelectNames[] = {
    {"auto", "automatic", Select::automatic}, {"rows", "rows", Select::rows}, {"columns", "columns", Select::columns}};

constexpr Option kDion2Options[] = {
    kMuonLr,
    kSelectedFraction,
    kFeedbackDecay,
    {"select", std::string_view("auto"), one_of({"Select", kSelectNames}),
     "what slices are: the shorter side, rows if square, or one side"},
    kNewtonSchulzOption,
    kNewtonSchulzSteps,
    kAdjustLrOption,
    precision_of("medium"),
    kOwnersOption,
    kMomentumDtype,
};

constexpr State kDion2States[] = {kOwnMomentum};

}  // namespace

// Dion2 (arXiv 2512.16928): of each momentum some slices are orthonormalized, those of the largest norms, wherever the
// pieces of matrices lie.
constexpr Algorithm kDion2{
    .name = "dion2",
    .title = "Dion2",
    .options = kDion2Options,
    .states = kDion2States,
    .cost = cost_of_selected,
    .update = update_selected,
    .owned_work = work_of_selected,
    .shares_among_copies = true,
    .decouples = always_decouples,
};

}  // namespace torchdion::algorithms
