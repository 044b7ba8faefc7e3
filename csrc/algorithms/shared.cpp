#include "algorithms/shared.h"

namespace torchdion::algorithms {

namespace {

constexpr Option kShared[] = {
    {.name = "lr", .initial = 0.01, .allowed = kNotNegative, .doc = "learning rate η", .may_be_tensor = true},
    {"lr_multiplier", 1.0, kNotNegative, "a factor on lr, so that one schedule drives all groups (Table 1)"},
    {.name = "weight_decay",
     .initial = 0.01,
     .allowed = kNotNegative,
     .doc = "λ, decoupled: weights are scaled by 1 − ηλ",
     .may_be_tensor = true},
    {"cautious_wd", false, kFlag, "weights decay where they have the sign of the update alone (arXiv 2510.12402)"},
    {"maximize", false, kFlag, "ascend instead of descend"},
    {"batch_dims", {}, kDimsOrNone, "leading dimensions that count matrices, as in stacks of experts"},
    {.name = "capturable",
     .initial = false,
     .allowed = kFlag,
     .doc = "a CUDA graph may capture steps",
     .of_optimizer = true,
     .of_run = true},
    {.name = "nonfinite",
     .initial = std::string_view("propagate"),
     .allowed = one_of(kNonfinite),
     .doc = "what NaN and infinite entries of gradients do",
     .uncaptured = {std::string_view("raise")},
     .of_optimizer = true},
    precision_of("high"),
};

constexpr Option kOfMatrices[] = {
    {"blocks", int64_t{1}, kCounting, "matrices fused along the rows: 3 for QKV"},
    {"fan_in_first", false, kFlag, "the first matrix dimension is the fan-in, as of ConvTranspose weights"},
    {"skip_zero_gradients", false, kFlag,
     "a matrix whose gradient is exactly zero on all ranks keeps weight and state, as experts without tokens should"},
};

}  // namespace

std::span<const Option> shared_options() { return kShared; }
std::span<const Option> matrix_options() { return kOfMatrices; }

}  // namespace torchdion::algorithms
