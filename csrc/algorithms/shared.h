// Options and states that several algorithms have.
#pragma once

#include <torchdion/options.h>

#include <span>

#include "algorithms/algorithm.h"
#include "linalg/rules/decay.h"

namespace torchdion::algorithms {

inline constexpr Choice kPrecisionNames[] = {{"highest", "highest", Precision::highest},
                                             {"high", "high", Precision::high},
                                             {"medium", "medium", Precision::medium}};
inline constexpr Choices kPrecision{"Precision", kPrecisionNames};
inline constexpr Choice kOrientationNames[] = {{"right", "right", Orientation::right},
                                               {"left", "left", Orientation::left},
                                               {"short", "short_side", Orientation::short_side}};
inline constexpr Choices kOrientation{"Orientation", kOrientationNames};

inline constexpr Choice kOwnersNames[] = {{"all", "all", Owners::all}, {"shard", "shard", Owners::shard}};
// Of algorithms whose update needs nothing of a parameter but its mean gradient: any rank may do it for all.
inline constexpr Option kOwnersOption{.name = "owners",
                                      .initial = std::string_view("all"),
                                      .allowed = one_of({"Owners", kOwnersNames}),
                                      .doc =
                                          "who keeps a parameter's state and updates it: all ranks that have it, or "
                                          "one of those of replicate_mesh for each part (nanochat's DistAdamW)",
                                      .of_optimizer = true,
                                      .of_run = true};

inline constexpr Option lr_of(double initial, std::string_view doc) {
  return {.name = "lr", .initial = initial, .allowed = kNotNegative, .doc = doc, .may_be_tensor = true};
}

inline constexpr Option kMomentumDtype{"momentum_dtype", {}, kDtypeOrNone, "dtype of the momentum"};
inline constexpr Option kVarianceDtype{"variance_dtype", {}, kDtypeOrNone, "dtype of mean squares"};

// Of replicas that never exchange it.
inline constexpr State kOwnMomentum{
    .name = "momentum", .holder = Holder::each_replica, .dtype_option = "momentum_dtype"};

inline constexpr Option precision_of(std::string_view initial) {
  Allowed allowed = one_of(kPrecision);
  allowed.or_none = true;
  return {"precision", initial, allowed, "what FP32 operands of products are rounded to"};
}

inline Precision precision_asked(const Options& options) {
  return enumerator<Precision>(kPrecision, options.text("precision"));
}

inline linalg::Decay decay_asked(const Options& options) {
  return options.flag("cautious_wd") ? linalg::Decay::cautious : linalg::Decay::all;
}

// Algorithm::decouples of those whose replicas never exchange gradients.
inline bool always_decouples(int64_t, int64_t, std::span<const int64_t>, const Options&) { return true; }

}  // namespace torchdion::algorithms
