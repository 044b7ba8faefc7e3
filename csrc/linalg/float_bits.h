// The bits of FP32 numbers. No C++20: nvcc compiles this.
#pragma once

#include <cstdint>
#include <cstring>

#include "linalg/host_device.h"

namespace torchdion::linalg {

TORCHDION_HOST_DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

TORCHDION_HOST_DEVICE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace torchdion::linalg
