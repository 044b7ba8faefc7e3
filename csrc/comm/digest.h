// Digests by which ranks compare what they hold. Other processes, machines and libraries compute the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace torchdion::comm {

// 64 bits of all bytes: words of eight, each mixed by a product and a shift, which are invertible, so that no single
// word can differ unseen. Bytes may come in parts, which must be cut alike wherever digests are compared.
class Digest {
 public:
  explicit Digest(std::size_t size) : state_(0x9E3779B97F4A7C15 ^ size) {}

  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      uint64_t word = 0;
      const std::size_t taken = bytes.size() < sizeof word ? bytes.size() : sizeof word;
      std::memcpy(&word, bytes.data(), taken);
      bytes.remove_prefix(taken);
      mix(word);
    }
  }

  int64_t result() {
    mix(0);
    return static_cast<int64_t>(state_);
  }

 private:
  void mix(uint64_t word) {
    state_ = (state_ ^ word) * 0xD6E8FEB86659FD93;
    state_ ^= state_ >> 32;
  }

  uint64_t state_;
};

inline int64_t digest(std::string_view bytes) {
  Digest all(bytes.size());
  all.add(bytes);
  return all.result();
}

}  // namespace torchdion::comm
