#include "optim/kinds.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cctype>
#include <regex>

namespace torchdion::optim {

namespace {

using namespace torch::nn;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

// Names of what has several dimensions and is no matrix, as in Python's kinds.py: what is looked up or added, and what
// multiplies entry by entry.
bool is_no_matrix(const Module& owner, const std::string& key, const at::Tensor& param) {
  static const std::regex names(
      "bias|embed|position|rel_pos|pos_enc|encoding|token|table|prompt|latent|probe|registers?$|codebook|codevector"
      "|^quer(y|ies)$|(^|_)(scale|gain|gamma|beta|alpha|lambda|temperature)_?\\d*$|logit_scale"
      "|^A_logs?$|^Ds?$|^dt_|^time_(?!\\w*_w\\d)");
  const auto long_sides = std::count_if(param.sizes().begin(), param.sizes().end(), [](int64_t n) { return n > 1; });
  const bool is_norm = lower(owner.name()).find("norm") != std::string::npos;
  return long_sides <= 1 || is_norm || std::regex_search(key, names);
}

bool are_experts(const Module& owner, const std::string& module_name, const std::string& key) {
  static const std::regex words("expert", std::regex::icase);
  static const std::regex keys("(gate_up|gate|up|down)_proj|w[123]");
  return std::regex_match(key, keys) || std::regex_search(module_name + " " + key + " " + owner.name(), words);
}

// Whether stacks are (experts, in, out), by the sizes of the fused one and of the one that undoes it.
bool is_fan_in_first(const Module& owner) {
  const auto parameters = owner.named_parameters(/*recurse=*/false);
  const at::Tensor *fused = parameters.find("gate_up_proj"), *plain = parameters.find("down_proj");
  if (!fused || !plain || fused->dim() != 3 || plain->dim() != 3) return false;
  return fused->size(1) == plain->size(2) && fused->size(2) == 2 * plain->size(1);
}

bool is_embedding(const Module& owner, const std::string& key) {
  if (owner.as<EmbeddingImpl>() || owner.as<EmbeddingBagImpl>()) return true;
  return key == "weight" && owner.name().find("Embedding") != std::string::npos;
}

}  // namespace

Kind kind_of(const Module& owner, const std::string& module_name, const std::string& key, const at::Tensor& param) {
  if (is_embedding(owner, key)) return Kind::embedding;
  if (param.dim() < 2 || key.ends_with("_g")) return Kind::vector;  // a gain of a weight norm
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

Form form_of(Kind kind, const Module& owner, const std::string& key, const at::Tensor& param) {
  if (kind == Kind::convolution) return {.batch_dims = 0};
  if (kind == Kind::transposed) return {.batch_dims = 0, .fan_in_first = true};
  if (kind == Kind::fused) return {.blocks = 3};
  if (kind != Kind::stack) return {};
  Form form{.batch_dims = 1, .fan_in_first = is_fan_in_first(owner), .skip_zero_gradients = true};
  if (key == "gate_up_proj" && !form.fan_in_first && param.size(1) % 2 == 0) form.blocks = 2;
  return form;
}

DionOptions with_form(const Form& form, DionOptions options) {
  if (form.batch_dims) options.batch_dims(*form.batch_dims).fan_in_first(form.fan_in_first);
  if (form.blocks > 1) options.blocks(form.blocks);
  if (form.skip_zero_gradients) options.skip_zero_gradients(true);
  return options;
}

}  // namespace torchdion::optim
