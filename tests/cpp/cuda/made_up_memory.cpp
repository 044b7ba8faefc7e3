#include "cuda/made_up_memory.h"

#include <c10/core/Allocator.h>

#include <cstdint>

namespace torchdion::linalg::emulated {

namespace {

constexpr std::size_t kGranularity = 512;  // bytes, of torch's allocator for CUDA

// Each address is given out once.
class MadeUpAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    void* address = reinterpret_cast<void*>(next_);
    next_ += rounded + kGranularity * ++allocations_;  // no two neighbours lie equally far apart
    report(rounded);
    auto* size = new std::size_t(rounded);
    return {address, size, &free, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void report(int64_t bytes) {
    if (bytes != 0) c10::reportMemoryUsageToProfiler(nullptr, bytes, 0, 0, c10::Device(c10::kMeta));
  }
  static void free(void* context) {
    auto* size = static_cast<std::size_t*>(context);
    report(-static_cast<int64_t>(*size));
    delete size;
  }

  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  std::size_t allocations_ = 0;
};

}  // namespace

void make_memory_up() {
  static MadeUpAllocator allocator;
  c10::SetAllocator(c10::kMeta, &allocator);
}

}  // namespace torchdion::linalg::emulated
