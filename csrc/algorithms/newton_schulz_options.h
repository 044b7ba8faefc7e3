// Options of the algorithms that orthonormalize by Newton–Schulz iterations, and what follows from them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include "algorithms/batch.h"
#include "algorithms/shared.h"
#include "linalg/axpby.h"
#include "linalg/newton_schulz.h"

namespace torchdion::algorithms {

inline constexpr Choice kNewtonSchulzNames[] = {{"auto", "automatic", NewtonSchulz::automatic},
                                                {"jordan", "jordan", NewtonSchulz::jordan},
                                                {"polar_express", "polar_express", NewtonSchulz::polar_express},
                                                {"gram", "gram", NewtonSchulz::gram}};
inline constexpr Choice kAdjustLrNames[] = {{"spectral_norm", "spectral_norm", AdjustLr::spectral_norm},
                                            {"rms_norm", "rms_norm", AdjustLr::rms_norm},
                                            {"original", "original", AdjustLr::original}};

inline constexpr Option kMuonLr = lr_of(0.02, "learning rate η, before the factor that adjust_lr says");
inline constexpr Option kMuonMomentum{"mu", 0.95, kBelowOne, "momentum decay μ"};
inline constexpr Option kMuonNesterov{"nesterov", true, kFlagOrNone, "orthonormalize G + μ M, not M"};
inline constexpr Option kNewtonSchulzOption{"newton_schulz", std::string_view("auto"),
                                            one_of({"NewtonSchulz", kNewtonSchulzNames}),
                                            "the iteration: Jordan's polynomial, those of Polar Express (arXiv "
                                            "2505.16932), or these on the Gram matrix; auto: of "
                                            "the last two on GPUs the one with fewer operations"};
inline constexpr Option kNewtonSchulzSteps{"ns_steps", int64_t{5}, kBelowHundred, "Newton–Schulz iterations"};
inline constexpr Option kAdjustLrOption{
    "adjust_lr", std::string_view("spectral_norm"), one_of_or_none({"AdjustLr", kAdjustLrNames}),
    "the factor on lr of an m×n matrix: sqrt(m / n), 0.2 sqrt(max(m, n)), sqrt(max(1, m / n)), or none"};

// What matrices are orthonormalized in, and travel to their owners as.
at::ScalarType orthonormalized_dtype(const BatchShape& shape, const Options& options);

// Room in a workspace, which is of the computing dtype, for so many elements of that dtype.
int64_t room_for_orthonormalized(int64_t numel, const BatchShape& shape, const Options& options);

// Of m×n matrices in this dtype on this device.
linalg::NewtonSchulzSteps newton_schulz_steps(int64_t m, int64_t n, const Options& options, at::ScalarType dtype,
                                              c10::Device device);

// Of one m×n matrix, by its owner; and the bytes beside it.
int64_t newton_schulz_operations(int64_t m, int64_t n, const BatchShape& shape, const Options& options);
int64_t newton_schulz_bytes(int64_t m, int64_t n, const BatchShape& shape, const Options& options);

// The orthonormal factors of X ([count, m, n]), which is written over. `squares`: of X, or undefined.
at::Tensor orthonormalize_as_asked(const at::Tensor& X, const Options& options, const at::Tensor& squares = {});

// X = (1 − η λ) X − η factor U, of the weights of a batch, or their transposes.
void move_weights_(const linalg::Matrices& X, const linalg::Matrices& U, const Batch& batch, const Options& options,
                   const linalg::RowRule& rows = {});

}  // namespace torchdion::algorithms
