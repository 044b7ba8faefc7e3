// Text from a trained model.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace gpt {

// Tokens (batch, length) to logits (batch, length, vocabulary).
using Logits = std::function<at::Tensor(const at::Tensor&)>;

// `length` bytes that follow a line's end, each drawn by torch's default generator given at most the last `context`
// ones. A lower temperature makes safer choices.
std::string sample(const Logits& logits, int64_t length, int64_t context, double temperature);

}  // namespace gpt
