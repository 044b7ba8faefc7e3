#include "linalg/top_k.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "linalg/cpu/operations.h"
#include "linalg/float_bits.h"

namespace torchdion::linalg::cpu {

namespace {

// Calls take(place, of_k) for the places of the k largest of these numbers in their order: `of_k` counts them. Of equal
// ones the first are taken. `scratch` keeps nothing.
template <class Bits, class Take>
void for_each_of_largest(const std::vector<Bits>& numbers, int64_t k, std::vector<Bits>& scratch, const Take& take) {
  if (k == 0) return;
  scratch = numbers;
  std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), std::greater<>());
  const Bits threshold = scratch[k - 1];
  int64_t equal = k - std::ranges::count_if(numbers, [&](Bits each) { return each > threshold; });  // that are taken
  int64_t found = 0;
  for (std::size_t i = 0; i < numbers.size() && found < k; ++i) {
    if (numbers[i] < threshold || (numbers[i] == threshold && equal-- <= 0)) continue;
    take(static_cast<int64_t>(i), found++);
  }
}

}  // namespace

void Operations::top_k(const at::Tensor& chosen, const at::Tensor& entries) {
  const int64_t count = entries.size(0), size = entries.size(1), k = chosen.size(2);
  AT_DISPATCH_FLOATING_TYPES(entries.scalar_type(), "torchdion::top_k", [&] {
    const auto* source = entries.const_data_ptr<scalar_t>();
    auto* target = chosen.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      std::vector<typename Magnitude<scalar_t>::Bits> magnitudes(size), scratch;
      for (int64_t i = begin; i < end; ++i) {
        const scalar_t* row = source + i * size;
        scalar_t *places = target + i * 2 * k, *values = places + k;
        std::transform(row, row + size, magnitudes.begin(), magnitude_of<scalar_t>);
        for_each_of_largest(magnitudes, k, scratch, [&](int64_t place, int64_t of_k) {
          places[of_k] = static_cast<scalar_t>(place);
          values[of_k] = row[place];
        });
      }
    });
  });
}

ChosenRows Operations::choose_rows(const at::Tensor& norms, int64_t k) {
  const int64_t count = norms.size(0), size = norms.size(1);
  const ChosenRows chosen{at::empty({count, k}, at::kInt), at::full({count, size}, -1, at::kInt)};
  std::vector<Magnitude<double>::Bits> bits(size), scratch;
  for (int64_t matrix = 0; matrix < count; ++matrix) {
    const double* of_matrix = norms.const_data_ptr<double>() + matrix * size;
    auto *rows = chosen.rows.mutable_data_ptr<int32_t>() + matrix * k,
         *slots = chosen.slots.mutable_data_ptr<int32_t>() + matrix * size;
    std::transform(of_matrix, of_matrix + size, bits.begin(), leading_bits_of);
    for_each_of_largest(bits, k, scratch, [&](int64_t row, int64_t of_k) {
      rows[of_k] = static_cast<int32_t>(row);
      slots[row] = static_cast<int32_t>(of_k);
    });
  }
  return chosen;
}

}  // namespace torchdion::linalg::cpu
