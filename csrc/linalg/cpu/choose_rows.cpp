#include "linalg/choose_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "linalg/cpu/operations.h"
#include "linalg/magnitude.h"

namespace torchdion::linalg::cpu {

ChosenRows Operations::choose_rows(const at::Tensor& norms, int64_t k) {
  using Bits = Magnitude<double>::Bits;
  const int64_t count = norms.size(0), size = norms.size(1);
  const ChosenRows chosen{at::empty({count, k}, at::kInt), at::full({count, size}, -1, at::kInt)};
  std::vector<Bits> bits(size), sorted(size);
  for (int64_t matrix = 0; matrix < count && k > 0; ++matrix) {
    const double* of_matrix = norms.const_data_ptr<double>() + matrix * size;
    auto *rows = chosen.rows.mutable_data_ptr<int32_t>() + matrix * k,
         *slots = chosen.slots.mutable_data_ptr<int32_t>() + matrix * size;
    std::transform(of_matrix, of_matrix + size, bits.begin(), leading_bits_of);
    sorted = bits;
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
    const Bits threshold = sorted[k - 1];
    int64_t equal = k - std::count_if(bits.begin(), bits.end(), [&](Bits each) { return each > threshold; });
    int32_t found = 0;
    for (int64_t i = 0; i < size && found < k; ++i) {
      if (bits[i] < threshold || (bits[i] == threshold && equal-- <= 0)) continue;
      rows[found] = static_cast<int32_t>(i);
      slots[i] = found++;
    }
  }
  return chosen;
}

}  // namespace torchdion::linalg::cpu
