// Philox-4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of a key and a counter, so that any rank
// can make any piece of a random matrix by itself.
#pragma once

#include <cstdint>

#include "linalg/host_device.h"

namespace torchdion::linalg {

struct PhiloxBlock {
  uint32_t words[4];
};

TORCHDION_HOST_DEVICE PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t* const x = counter.words;
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0], product1 = uint64_t{0xCD9E8D57} * x[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace torchdion::linalg
