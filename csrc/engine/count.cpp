#include "engine/count.h"

#include <algorithm>

namespace torchdion::engine {

void Count::add(const at::Tensor& number) {
  if (number.is_cpu()) {
    known += number.item<int64_t>();
    return;
  }
  const auto is_beside = [&](const at::Tensor& other) { return other.device() == number.device(); };
  const auto found = std::find_if(on_devices.begin(), on_devices.end(), is_beside);
  if (found == on_devices.end()) {
    on_devices.push_back(number);
  } else {
    *found = found->add(number);
  }
}

void Count::add(const Count& more) {
  known += more.known;
  for (const at::Tensor& number : more.on_devices) add(number);
}

int64_t Count::total() const {
  int64_t sum = known;
  for (const at::Tensor& number : on_devices) sum += number.item<int64_t>();
  return sum;
}

}  // namespace torchdion::engine
