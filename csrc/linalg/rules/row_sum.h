// What is summed of rows, for all devices.
#pragma once

#include <cmath>

#include "linalg/host_device.h"

namespace torchdion::linalg {

enum class RowSum { magnitudes, squares };

template <RowSum kind>
TORCHDION_HOST_DEVICE double term_of(double entry) {
  return kind == RowSum::magnitudes ? fabs(entry) : entry * entry;
}

}  // namespace torchdion::linalg
