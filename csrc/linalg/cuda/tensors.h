// Matrices and tensors as kernels take them.
#pragma once

#include "linalg/cuda/kernels.h"
#include "linalg/matrices.h"
#include "linalg/rates.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

Storage storage_of(at::ScalarType dtype);

// torch's current stream on a device.
Stream stream_of(c10::Device device);

Entries entries(const at::Tensor& tensor);
DeviceRates device_rates(const FactorRule& rule);

// A copy of host memory, a multiple of 8 bytes, in the memory of the device. The host's may change at once.
at::Tensor table_of(const void* data, std::size_t bytes, c10::Device device);

// The same of words that are often the same: a table that has them already is taken, where its upload has been ordered
// on the current stream.
at::Tensor kept_table_of(const std::vector<uint64_t>& words, c10::Device device);

// A list of matrices that kernels can read for as long as this lives.
class Listed {
 public:
  explicit Listed(const Matrices& matrices);
  operator const MatrixList&() const { return list_; }
  void* const* data() const { return list_.data; }

 private:
  at::Tensor pointers_;
  MatrixList list_;
};

// The matrices themselves, or copies, which live as long as `memory`, without entries where nobody reads them: of
// another dtype; with contiguous rows; with each at a multiple of 16 bytes, or, as a stack, the first one. The last
// keep their strides, by which products choose kernels: rows that are cut out of a wide matrix take the wide one's
// memory.
Matrices stored_as(at::ScalarType dtype, const Matrices& matrices, at::Tensor& memory, bool with_entries = true);
Matrices with_contiguous_rows(const Matrices& matrices, at::Tensor& memory);
Matrices aligned(const Matrices& matrices, bool as_stack, at::Tensor& memory, bool with_entries = true);

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
