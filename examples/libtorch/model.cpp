#include "model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

namespace gpt {

namespace {

constexpr double kRotaryBase = 10000;
// The embedding is normalized when read, so its scale only sets how fast it turns.
constexpr double kEmbeddingDeviation = 0.02;
// The standard deviation of the first logits.
constexpr double kHeadGain = 0.25;

at::Tensor rms_norm(const at::Tensor& x) { return at::rms_norm(x, {x.size(-1)}); }

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

Rotary::Rotary(int64_t length, int64_t d_head, at::Device device) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor frequency = at::pow(kRotaryBase, -at::arange(0, d_head, 2, options) / d_head);
  const at::Tensor angle = at::outer(at::arange(length, options), frequency);
  cos = angle.cos();
  sin = angle.sin();
}

at::Tensor Rotary::operator()(const at::Tensor& x) const {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[0] * sin + halves[1] * cos}, -1);
}

Attention::Attention(int64_t d_model, int64_t heads)
    : heads(heads),
      query(register_module("query", linear(d_model, d_model))),
      key(register_module("key", linear(d_model, d_model))),
      value(register_module("value", linear(d_model, d_model))),
      output(register_module("output", linear(d_model, d_model))) {}

at::Tensor Attention::forward(const at::Tensor& x, const Rotary& rotary) {
  const std::array split{x.size(0), x.size(1), heads, x.size(2) / heads};
  const at::Tensor q = rotary(query(x).view(split).transpose(1, 2));
  const at::Tensor k = rotary(key(x).view(split).transpose(1, 2));
  const at::Tensor v = value(x).view(split).transpose(1, 2);
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0, /*is_causal=*/true);
  return output(y.transpose(1, 2).reshape(x.sizes()));
}

MLP::MLP(int64_t d_model)
    : up(register_module("up", linear(d_model, 4 * d_model))),
      down(register_module("down", linear(4 * d_model, d_model))) {}

at::Tensor MLP::forward(const at::Tensor& x) { return down(at::relu(up(x)).square()); }

Block::Block(int64_t d_model, int64_t heads)
    : attention(register_module("attention", std::make_shared<Attention>(d_model, heads))),
      mlp(register_module("mlp", std::make_shared<MLP>(d_model))) {}

at::Tensor Block::forward(at::Tensor x, const Rotary& rotary) {
  x = x + attention->forward(rms_norm(x), rotary);
  return x + mlp->forward(rms_norm(x));
}

GPT::GPT(int64_t vocabulary, int64_t layers, int64_t d_model, int64_t heads)
    : d_head(d_model / heads),
      embedding(register_module("embedding", torch::nn::Embedding(vocabulary, d_model))),
      blocks(register_module("blocks", torch::nn::ModuleList())),
      head(register_module("head", linear(d_model, vocabulary))) {
  for (int64_t i = 0; i < layers; ++i) {
    stack_.push_back(std::make_shared<Block>(d_model, heads));
    blocks->push_back(stack_.back());
  }
  initialize();
}

at::Tensor GPT::forward(const at::Tensor& tokens) {
  const Rotary rotary(tokens.size(1), d_head, tokens.device());
  at::Tensor x = rms_norm(embedding(tokens));
  for (const auto& block : stack_) x = block->forward(x, rotary);
  return head(rms_norm(x));
}

// The matrices that write into the residual stream start at zero, and so every block as the identity. The head starts
// small, so that the first prediction is nearly uniform, but not at zero, which would keep the first gradient from all
// that lies below it.
void GPT::initialize() {
  const at::NoGradGuard no_gradient;
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    at::Tensor& weight = item.value();
    const auto fan_in = static_cast<double>(weight.size(1));
    if (name.ends_with("output.weight") || name.ends_with("down.weight")) {
      weight.zero_();
    } else if (name == "embedding.weight") {
      weight.normal_(0, kEmbeddingDeviation);
    } else {
      weight.normal_(0, (name == "head.weight" ? kHeadGain : 1) / std::sqrt(fan_in));
    }
  }
}

}  // namespace gpt
