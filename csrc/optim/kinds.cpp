#include "optim/kinds.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <regex>

namespace torchdion::optim {

namespace {

using namespace torch::nn;

// Names of what has several dimensions and is no matrix, as in Python's kinds.py: what is looked up or added, and what
// multiplies entry by entry.
bool is_no_matrix(const Module& owner, const std::string& key, const at::Tensor& param) {
  static const std::regex names(
      "bias|embed|position|rel_pos|pos_enc|encoding|token|table|prompt|latent|probe|registers?$|codebook|codevector"
      "|^quer(y|ies)$|(^|_)(scale|gain|gamma|beta|alpha|lambda|temperature)_?\\d*$|logit_scale"
      "|^A_logs?$|^Ds?$|^dt_|^time_(?!\\w*_w\\d)");
  const auto long_sides = std::count_if(param.sizes().begin(), param.sizes().end(), [](int64_t n) { return n > 1; });
  const bool is_norm = owner.name().find("Norm") != std::string::npos;
  return long_sides <= 1 || is_norm || std::regex_search(key, names);
}

bool are_experts(const Module& owner, const std::string& module_name, const std::string& key) {
  static const std::regex words("expert", std::regex::icase);
  static const std::regex keys("(gate_up|gate|up|down)_proj|w[123]");
  return std::regex_match(key, keys) || std::regex_search(module_name + " " + key + " " + owner.name(), words);
}

}  // namespace

Kind kind_of(const Module& owner, const std::string& module_name, const std::string& key, const at::Tensor& param) {
  if (owner.as<EmbeddingImpl>() || owner.as<EmbeddingBagImpl>()) return Kind::embedding;
  if (param.dim() < 2) return Kind::vector;
  if (owner.as<ConvTranspose1dImpl>() || owner.as<ConvTranspose2dImpl>() || owner.as<ConvTranspose3dImpl>()) {
    return Kind::transposed;
  }
  const bool is_convolution = owner.as<Conv1dImpl>() || owner.as<Conv2dImpl>() || owner.as<Conv3dImpl>();
  if (is_convolution || owner.as<BilinearImpl>()) return Kind::convolution;
  if (owner.as<LinearImpl>()) return Kind::matrix;
  if (owner.as<MultiheadAttentionImpl>() && key == "in_proj_weight") return Kind::fused;
  if (is_no_matrix(owner, key, param)) return Kind::vector;
  if (param.dim() == 3 && are_experts(owner, module_name, key)) return Kind::stack;
  return Kind::matrix;  // of three dimensions it may be a convolution or a stack: Dion warns of it
}

DionOptions with_form(Kind kind, DionOptions options) {
  if (kind == Kind::convolution || kind == Kind::transposed) {
    options.batch_dims(0).fan_in_first(kind == Kind::transposed);
  }
  if (kind == Kind::fused) options.blocks(3);
  if (kind == Kind::stack) options.batch_dims(1).skip_zero_gradients(true);
  return options;
}

}  // namespace torchdion::optim
