// The loop that the elementwise algorithms share: it hands each of them short runs of elements in the computing type,
// whatever types the tensors are stored in.
#pragma once

#include <ATen/Parallel.h>

#include <array>
#include <atomic>
#include <cmath>

#include "linalg/cpu/convert.h"

namespace torchdion::linalg::cpu {

inline constexpr int64_t kRun = 1024;  // elements: a few runs fit the first-level cache
inline constexpr int64_t kRunsPerThread = 16;

// A run of a contiguous tensor as T: the elements where they lie, or a copy that store() rounds back.
template <class T>
class Run {
 public:
  Run(const at::Tensor& tensor, int64_t begin, int64_t count) : tensor_(tensor), begin_(begin), count_(count) {
    TORCHDION_DISPATCH_FLOATING(tensor.scalar_type(), "torchdion::Run", [&] {
      scalar_t* source = static_cast<scalar_t*>(tensor.data_ptr()) + begin;
      if constexpr (std::is_same_v<scalar_t, T>) {
        data_ = source;
      } else {
        for (int64_t i = 0; i < count; ++i) copy_[i] = static_cast<T>(source[i]);
        data_ = copy_.data();
      }
    });
  }
  Run(const Run&) = delete;

  T* data() const { return data_; }

  // A copy in which entries that are not finite are zero; returns how many were.
  int64_t zero_nonfinite() {
    int64_t found = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const bool finite = std::isfinite(data_[i]);
      found += !finite;
      copy_[i] = finite ? data_[i] : T(0);
    }
    data_ = copy_.data();
    return found;
  }

  void store() const {
    TORCHDION_DISPATCH_FLOATING(tensor_.scalar_type(), "torchdion::Run", [&] {
      if constexpr (!std::is_same_v<scalar_t, T>) {
        scalar_t* target = static_cast<scalar_t*>(tensor_.data_ptr()) + begin_;
        for (int64_t i = 0; i < count_; ++i) target[i] = rounded<scalar_t>(copy_[i]);
      }
    });
  }

 private:
  const at::Tensor& tensor_;
  int64_t begin_, count_;
  T* data_ = nullptr;
  std::array<T, kRun> copy_;
};

// Calls body(begin, count, gradient) for runs that cover every element once, in parallel. Where `zeroed` is there,
// entries of the gradient that are not finite count as zero, and *zeroed grows by as many.
template <class T, class Body>
void for_each_run(const at::Tensor& gradient, int64_t* zeroed, const Body& body) {
  const int64_t numel = gradient.numel();
  std::atomic<int64_t> found{0};
  at::parallel_for(0, (numel + kRun - 1) / kRun, kRunsPerThread, [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      const int64_t begin = run * kRun, count = std::min(kRun, numel - begin);
      Run<T> g(gradient, begin, count);
      if (zeroed) found += g.zero_nonfinite();
      body(begin, count, g);
    }
  });
  if (zeroed) *zeroed += found;
}

}  // namespace torchdion::linalg::cpu
