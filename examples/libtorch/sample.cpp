#include "sample.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

namespace gpt {

namespace {

// Control characters would move a terminal's cursor about.
char printable(int64_t token) {
  const auto byte = static_cast<char>(token);
  const bool moves = token < 0x20 || token == 0x7f;
  return moves && byte != '\n' && byte != '\t' ? '?' : byte;
}

}  // namespace

std::string sample(const Logits& logits, int64_t length, int64_t context, double temperature) {
  const at::NoGradGuard no_gradient;
  std::string drawn;
  at::Tensor tokens = at::full({1, 1}, '\n', at::kLong);
  while (static_cast<int64_t>(drawn.size()) < length) {
    const at::Tensor last = logits(tokens).select(1, -1);
    const at::Tensor next = at::multinomial(at::softmax(last.div(temperature), -1), 1);
    drawn.push_back(printable(next.item<int64_t>()));
    tokens = at::cat({tokens, next}, 1).slice(1, std::max<int64_t>(0, tokens.size(1) + 1 - context));
  }
  return drawn;
}

}  // namespace gpt
