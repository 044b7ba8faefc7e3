#include "linalg/top_k.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "linalg/cpu/operations.h"
#include "linalg/magnitude.h"

namespace torchdion::linalg::cpu {

namespace {

// The k-th largest magnitude; `scratch` keeps nothing.
template <class T>
typename Magnitude<T>::Bits threshold_of(const T* entries, int64_t size, int64_t k,
                                         std::vector<typename Magnitude<T>::Bits>& scratch) {
  for (int64_t i = 0; i < size; ++i) scratch[i] = magnitude_of(entries[i]);
  std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), std::greater<>());
  return scratch[k - 1];
}

template <class T>
void choose(T* places, T* values, const T* entries, int64_t size, int64_t k,
            std::vector<typename Magnitude<T>::Bits>& scratch) {
  const auto threshold = threshold_of(entries, size, k, scratch);
  int64_t equal = k;  // of that magnitude, how many are taken
  for (int64_t i = 0; i < size; ++i) equal -= magnitude_of(entries[i]) > threshold;
  int64_t found = 0;
  for (int64_t i = 0; i < size && found < k; ++i) {
    const auto magnitude = magnitude_of(entries[i]);
    if (magnitude < threshold || (magnitude == threshold && equal-- <= 0)) continue;
    places[found] = static_cast<T>(i);
    values[found++] = entries[i];
  }
}

}  // namespace

void Operations::top_k(const at::Tensor& chosen, const at::Tensor& entries) {
  const int64_t count = entries.size(0), size = entries.size(1), k = chosen.size(2);
  AT_DISPATCH_FLOATING_TYPES(entries.scalar_type(), "torchdion::top_k", [&] {
    const auto* source = entries.const_data_ptr<scalar_t>();
    auto* target = chosen.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      std::vector<typename Magnitude<scalar_t>::Bits> scratch(size);
      for (int64_t i = begin; i < end; ++i) {
        scalar_t* row = target + i * 2 * k;
        choose(row, row + k, source + i * size, size, k, scratch);
      }
    });
  });
}

}  // namespace torchdion::linalg::cpu
