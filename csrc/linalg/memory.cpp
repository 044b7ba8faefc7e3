#include "linalg/memory.h"

#include <ATen/EmptyTensor.h>

namespace torchdion::linalg {

bool has_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_nested() || tensor.is_quantized() || tensor._is_zerotensor()) return false;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage() || tensor.layout() != at::kStrided) return false;
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  // A wrapper subclass has a storage of any length without a pointer; a fake tensor's is on the device "meta". That of
  // a lazy copy is there, and copied when it is asked for as writable.
  const bool is_there = storage->_mutable_data_ptr_no_checks().get() && storage->device() == tensor.device();
  if (!is_there) return !impl->is_python_dispatch() && tensor.numel() == 0 && storage->device() == tensor.device();
  return tensor.numel() == 0 || storage->nbytes() >= bytes_in_use(tensor);
}

std::size_t bytes_in_use(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                          tensor.storage_offset());
}

}  // namespace torchdion::linalg
