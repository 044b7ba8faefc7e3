// Whether there is memory behind a tensor: no pointer is taken of one that has not proven it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace torchdion::linalg {

// Whether the numbers of a tensor lie where its pointer says. Those of a wrapper subclass of Python, a fake or
// functional tensor, one inside of torch.func, a Meta tensor or a storage that was freed do not.
bool has_memory(const at::Tensor& tensor);

// The bytes from the begin of the storage to the end of the last element. The tensor is strided.
std::size_t bytes_in_use(const at::Tensor& tensor);

}  // namespace torchdion::linalg
