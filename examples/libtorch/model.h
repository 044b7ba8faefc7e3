// The paper's GPT: rotary positions, weightless RMSNorm, squared-ReLU MLP, no biases, untied head.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

namespace gpt {

// Cosines and sines of position * frequency, each (length, d_head / 2).
struct Rotary {
  at::Tensor cos;
  at::Tensor sin;

  Rotary(int64_t length, int64_t d_head, at::Device device);

  // Turns each pair (x[k], x[k + d_head/2]) by its position's angle; x is (batch, heads, length, d_head).
  at::Tensor operator()(const at::Tensor& x) const;
};

// Causal self-attention; queries, keys and values are three matrices, each orthonormalized by itself.
struct Attention : torch::nn::Module {
  Attention(int64_t d_model, int64_t heads);
  at::Tensor forward(const at::Tensor& x, const Rotary& rotary);

  int64_t heads;
  torch::nn::Linear query, key, value, output;
};

// d_model -> 4 d_model -> d_model with max(0, x)² between.
struct MLP : torch::nn::Module {
  explicit MLP(int64_t d_model);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear up, down;
};

struct Block : torch::nn::Module {
  Block(int64_t d_model, int64_t heads);
  at::Tensor forward(at::Tensor x, const Rotary& rotary);

  std::shared_ptr<Attention> attention;
  std::shared_ptr<MLP> mlp;
};

// Tokens (batch, length) to next-token logits (batch, length, vocabulary). Parameters have the names of examples/gpt.
struct GPT : torch::nn::Module {
  // Draws all weights from torch's default generator.
  GPT(int64_t vocabulary, int64_t layers, int64_t d_model, int64_t heads);
  at::Tensor forward(const at::Tensor& tokens);

  int64_t d_head;
  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;

 private:
  void initialize();

  std::vector<std::shared_ptr<Block>> stack_;  // the modules of `blocks`
};

}  // namespace gpt
