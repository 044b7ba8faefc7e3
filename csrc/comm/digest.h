// Digests by which ranks compare what they hold. Other processes, machines and libraries compute the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace torchdion::comm {

// 64 bits of all bytes: words of eight, each mixed by a product and a shift, which are invertible, so that no single
// word can differ unseen.
inline int64_t digest(std::string_view bytes) {
  uint64_t state = 0x9E3779B97F4A7C15 ^ bytes.size();
  const auto add = [&](uint64_t word) {
    state = (state ^ word) * 0xD6E8FEB86659FD93;
    state ^= state >> 32;
  };
  while (!bytes.empty()) {
    uint64_t word = 0;
    const std::size_t taken = bytes.size() < sizeof word ? bytes.size() : sizeof word;
    std::memcpy(&word, bytes.data(), taken);
    bytes.remove_prefix(taken);
    add(word);
  }
  add(0);
  return static_cast<int64_t>(state);
}

}  // namespace torchdion::comm
