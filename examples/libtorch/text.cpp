#include "text.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

#include "problem.h"

namespace gpt {

namespace {

constexpr std::size_t kPartsPerValidationPart = 10;

}  // namespace

Text::Text(const std::string& path) {
  if (!std::filesystem::exists(path)) throw Problem("there is no file " + path);
  if (!std::filesystem::is_regular_file(path)) throw Problem(path + " is no file");
  std::ifstream file(path, std::ios::binary);
  bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (!file) throw Problem(path + " cannot be read");
}

std::string_view Text::train() const {
  return std::string_view(bytes).substr(0, bytes.size() - bytes.size() / kPartsPerValidationPart);
}

std::string_view Text::validation() const { return std::string_view(bytes).substr(train().size()); }

int64_t Text::fingerprint() const {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  return static_cast<int64_t>(hash);
}

void check_length(const Text& text, const std::string& path, int64_t context) {
  const auto window = static_cast<std::size_t>(context) + 1;
  if (text.validation().size() < window) {
    throw Problem(path + " has " + std::to_string(text.bytes.size()) + " bytes, but --context " +
                  std::to_string(context) + " needs at least " + std::to_string(window * kPartsPerValidationPart) +
                  ", as the last tenth is for validation");
  }
}

Windows::Windows(std::string_view bytes, int64_t context)
    : bytes_(bytes), context_(context), size_((static_cast<int64_t>(bytes.size()) - 1) / context) {}

Batch Windows::batch(int64_t seed, int64_t first, int64_t count) {
  std::vector<int64_t> windows;
  for (int64_t i = first; i < first + count; ++i) {
    windows.push_back(order(seed, i / size_)[static_cast<std::size_t>(i % size_)]);
  }
  return gather(windows);
}

Batch Windows::evenly_spaced(int64_t count) const {
  std::vector<int64_t> windows;
  count = std::min(count, size_);
  for (int64_t i = 0; i < count; ++i) windows.push_back(i * size_ / count);
  return gather(windows);
}

const std::vector<int64_t>& Windows::order(int64_t seed, int64_t epoch) {
  if (epoch != epoch_) {
    std::seed_seq both{seed, epoch};
    std::mt19937_64 generator(both);
    order_.resize(static_cast<std::size_t>(size_));
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), generator);
    epoch_ = epoch;
  }
  return order_;
}

Batch Windows::gather(const std::vector<int64_t>& windows) const {
  const std::array shape{static_cast<int64_t>(windows.size()), context_ + 1};
  at::Tensor bytes = at::empty(shape, at::kLong);
  int64_t* next = bytes.mutable_data_ptr<int64_t>();
  for (const int64_t window : windows) {
    for (const char byte : bytes_.substr(static_cast<std::size_t>(window * context_), shape[1])) {
      *next++ = static_cast<unsigned char>(byte);
    }
  }
  return {bytes.narrow(1, 0, context_).contiguous(), bytes.narrow(1, 1, context_).contiguous()};
}

}  // namespace gpt
