#include "cuda/made_up_memory.h"

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <vector>

namespace torchdion::linalg::emulated {

namespace {

constexpr std::size_t kGranularity = 512;  // bytes, of torch's allocator for CUDA

// What was freed is given out again, the last first, to who asks for as much, as torch's allocator for CUDA does.
class MadeUpAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    std::vector<std::uintptr_t>& freed = freed_[rounded];
    if (freed.empty()) {
      freed.push_back(next_);
      next_ += rounded + kGranularity * ++allocations_;  // no two neighbours lie equally far apart
    }
    auto* block = new Block{*this, freed.back(), rounded};
    freed.pop_back();
    report(static_cast<int64_t>(rounded));
    return {reinterpret_cast<void*>(block->address), block, &free, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  struct Block {
    MadeUpAllocator& allocator;
    std::uintptr_t address;
    std::size_t bytes;
  };

  static void report(int64_t bytes) {
    if (bytes != 0) c10::reportMemoryUsageToProfiler(nullptr, bytes, 0, 0, c10::Device(c10::kMeta));
  }
  static void free(void* context) {
    const auto* block = static_cast<Block*>(context);
    report(-static_cast<int64_t>(block->bytes));
    block->allocator.freed_[block->bytes].push_back(block->address);
    delete block;
  }

  std::map<std::size_t, std::vector<std::uintptr_t>> freed_;  // by bytes
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  std::size_t allocations_ = 0;
};

}  // namespace

void make_memory_up() {
  static auto* const allocator = new MadeUpAllocator;  // tensors may outlive the end of the program
  c10::SetAllocator(c10::kMeta, allocator);
}

}  // namespace torchdion::linalg::emulated
