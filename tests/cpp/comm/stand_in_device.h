// A device that stands in for a GPU: its tensors lie in the host's memory, but torch takes them for those of another
// device, and gloo refuses them. What it has no code for torch computes on copies on the CPU.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>

namespace torchdion::comm {

inline const c10::Device kStandIn(c10::DeviceType::PrivateUse1, 0);

class StandInAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    memory.unsafe_set_device(kStandIn);
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

inline StandInAllocator stand_in_allocator;

// The same numbers as a tensor of the CPU, in the same memory.
inline at::Tensor on_the_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

namespace stand_in {

inline const c10::DispatchKeySet kKey(c10::DispatchKey::PrivateUse1);

inline at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &stand_in_allocator, kKey, dtype.value_or(at::kFloat), format);
}

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &stand_in_allocator, kKey, dtype.value_or(at::kFloat));
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_the_host(to).copy_(on_the_host(from));
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to, false);
}

inline void on_the_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack);
}

}  // namespace stand_in

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", stand_in::empty);
  m.impl("empty_strided", stand_in::empty_strided);
  m.impl("_copy_from", stand_in::copy_from);
  m.impl("_copy_from_and_resize", stand_in::copy_from_and_resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&stand_in::on_the_cpu>());
}

}  // namespace torchdion::comm
