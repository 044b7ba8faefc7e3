// Memory of Meta tensors that is not there: addresses, as distinct and as far apart as CUDA's, which a step takes and
// hands to kernels as it does those of a GPU. A list of any size is planned so on any machine.
#pragma once

namespace torchdion::linalg::emulated {

// From now on, for all Meta tensors of the process.
void make_memory_up();

}  // namespace torchdion::linalg::emulated
