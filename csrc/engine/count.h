#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchdion::engine {

// How many of something, part of which GPUs may still be counting.
struct Count {
  int64_t known = 0;
  std::vector<at::Tensor> on_devices;  // more of them: one number on each device

  void add(const at::Tensor& number);
  void add(const Count& more);
  int64_t total() const;  // waits
};

}  // namespace torchdion::engine
