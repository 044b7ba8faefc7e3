// Lists of pointers that lie in device memory from one step to the next: a training whose tensors stay where they are
// uploads them once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "linalg/cuda/launch.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

class KeptTables {
 public:
  // Of so many tables the one that has not been asked for for the longest time goes.
  static constexpr std::size_t kMost = 256;

  struct Key {
    c10::Device device;
    Stream stream;
    std::vector<uint64_t> words;

    bool operator==(const Key&) const = default;
  };

  // Never destroyed: at the end of a program its device may be gone before.
  static KeptTables& of_process() {
    static KeptTables* const tables = new KeptTables;
    return *tables;
  }

  // The table of these words, which `make` makes where there is none.
  template <class Make>
  at::Tensor find(Key key, const Make& make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto table = tables_.begin(); table != tables_.end(); ++table) {
      if (!(table->key == key)) continue;
      tables_.splice(tables_.begin(), tables_, table);
      return table->pointers;
    }
    tables_.push_front({std::move(key), make()});
    if (tables_.size() > kMost) tables_.pop_back();
    return tables_.front().pointers;
  }

 private:
  struct Table {
    Key key;
    at::Tensor pointers;
  };

  std::mutex mutex_;
  std::list<Table> tables_;
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
