// Symmetric products on the device's current stream, where multiplies_symmetric().
#pragma once

#include "linalg/cuda/runtime.h"

namespace torchdion::linalg::cuda {

void multiply_symmetric(const Product& product, int device);

}  // namespace torchdion::linalg::cuda
