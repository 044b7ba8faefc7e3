// A text file as batches of byte windows, each a pure function of the seed and its place, so that a step is a data
// position.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace gpt {

struct Text {
  std::string bytes;

  // Throws Problem for a file that cannot be read.
  explicit Text(const std::string& path);

  std::string_view train() const;
  std::string_view validation() const;  // the last tenth
  int64_t fingerprint() const;          // changes when the bytes do
};

// Throws Problem where a part of the text does not hold one window of `context` bytes and the one after.
void check_length(const Text& text, const std::string& path, int64_t context);

struct Batch {
  at::Tensor inputs;   // (windows, context), int64
  at::Tensor targets;  // the same, one byte later
};

// Bytes cut into windows of `context` bytes and the one after.
class Windows {
 public:
  Windows(std::string_view bytes, int64_t context);

  int64_t size() const { return size_; }

  // Windows `first` to `first + count - 1` of the training, which reads a fresh shuffle in each epoch.
  Batch batch(int64_t seed, int64_t first, int64_t count);

  // At most `count` windows spread over all bytes, the same for every seed.
  Batch evenly_spaced(int64_t count) const;

 private:
  const std::vector<int64_t>& order(int64_t seed, int64_t epoch);
  Batch gather(const std::vector<int64_t>& windows) const;

  std::string_view bytes_;
  int64_t context_;
  int64_t size_;
  int64_t epoch_ = -1;  // of order_
  std::vector<int64_t> order_;
};

}  // namespace gpt
