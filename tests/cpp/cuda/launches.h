#pragma once

#include <cstdint>

namespace torchdion::linalg::emulated {

// What a GPU would have been given to do so far: kernels, and products by cuBLAS (csrc/linalg/cuda/launch.h).
extern int64_t launches;

}  // namespace torchdion::linalg::emulated
