#include "optim/kinds.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <vector>

namespace torchdion::optim {

namespace {

using namespace torch::nn;

// The tables of names are those of Python's kinds.py, row by row. DBRX's stacks of two dimensions are known there
// alone: they need the number of experts, which a C++ module has no way to tell.
constexpr std::array kExperts = {"gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"};
constexpr std::array kNoMatrix = {
    R"(bias|^rpb$)",
    R"((^|_)pos(_|$)|(^|_)position|encoding)",
    R"(emb(ed(ding)?s?)?\d*(_|$))",
    R"(token|table|prompt|latent|probe|registers?$|codebook|codevector|^quer(y|ies)$)",
    R"(^(?![wW]_)(\w*_)?(scale|gain|gamma|beta|alpha|lambda|temperature)_?\d*$|logit_scale)",
    R"(^A_logs?$|^Ds?$|^dt_b)",
    R"(^time_(?!\w*_w\d))",
};
constexpr const char* kGain = R"(weight\w*_g$)";
constexpr const char* kProjection = R"(proj(ection)?(_weight)?$)";

bool is_gain(const std::string& key) {
  static const std::regex gain(kGain);
  return std::regex_search(key, gain);
}

bool is_named_as_no_matrix(const std::string& key) {
  static const std::vector<std::regex> names(kNoMatrix.begin(), kNoMatrix.end());
  static const std::regex projection(kProjection);
  const auto finds = [&](const std::regex& name) { return std::regex_search(key, name); };
  return std::any_of(names.begin(), names.end(), finds) && !finds(projection);
}

bool is_no_matrix(const Module& owner, const std::string& module_name, const std::string& key,
                  const at::Tensor& param) {
  const auto long_sides = std::count_if(param.sizes().begin(), param.sizes().end(), [](int64_t n) { return n > 1; });
  if (long_sides <= 1 || lower(class_of(owner)).find("norm") != std::string::npos) return true;
  const bool is_of_a_list = key.find_first_not_of("0123456789") == std::string::npos;
  return is_named_as_no_matrix(is_of_a_list ? module_name.substr(module_name.rfind('.') + 1) : key);
}

bool are_experts(const Module& owner, const std::string& module_name, const std::string& key) {
  if (std::find(kExperts.begin(), kExperts.end(), key) != kExperts.end()) return true;
  return lower(module_name + " " + key + " " + class_of(owner)).find("expert") != std::string::npos;
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
  return key == "weight" && class_of(owner).find("Embedding") != std::string::npos;
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

std::string class_of(const Module& module) {
  const std::string name = module.name().substr(0, module.name().find('<'));
  return name.substr(name.rfind(':') + 1);
}

Kind kind_of(const Module& owner, const std::string& module_name, const std::string& key, const at::Tensor& param) {
  if (is_embedding(owner, key)) return Kind::embedding;
  if (param.dim() < 2 || is_gain(key)) return Kind::vector;
  if (owner.as<ConvTranspose1dImpl>() || owner.as<ConvTranspose2dImpl>() || owner.as<ConvTranspose3dImpl>()) {
    return Kind::transposed;
  }
  const bool is_convolution = owner.as<Conv1dImpl>() || owner.as<Conv2dImpl>() || owner.as<Conv3dImpl>();
  if (is_convolution || owner.as<BilinearImpl>()) return Kind::convolution;
  if (owner.as<LinearImpl>() && key.starts_with("weight") && param.dim() == 2) return Kind::matrix;
  if (owner.as<MultiheadAttentionImpl>() && key == "in_proj_weight") return Kind::fused;
  if (is_no_matrix(owner, module_name, key, param)) return Kind::vector;
  if (param.dim() == 3 && are_experts(owner, module_name, key)) return Kind::stack;
  return param.dim() == 3 ? Kind::guessed : Kind::matrix;
}

Form form_of(Kind kind, const Module& owner, const std::string& key, const at::Tensor& param) {
  if (kind == Kind::convolution) return {.batch_dims = 0};
  if (kind == Kind::transposed) return {.batch_dims = 0, .fan_in_first = true};
  if (kind == Kind::fused) return {.blocks = 3};
  // A stack has fewer matrices than they have rows or columns; kernels and (width, heads, head) have more.
  if (kind == Kind::guessed) return {.batch_dims = param.size(0) <= std::min(param.size(1), param.size(2))};
  if (kind != Kind::stack) return {};
  Form form{.batch_dims = 1, .fan_in_first = is_fan_in_first(owner), .skip_zero_gradients = true};
  if (key == "gate_up_proj" && !form.fan_in_first && param.size(1) % 2 == 0) form.blocks = 2;
  return form;
}

Options with_form(const Form& form, Options options) {
  if (form.batch_dims) options.batch_dims(*form.batch_dims).fan_in_first(form.fan_in_first);
  if (form.blocks > 1) options.blocks(form.blocks);
  if (form.skip_zero_gradients) options.skip_zero_gradients(true);
  return options;
}

}  // namespace torchdion::optim
