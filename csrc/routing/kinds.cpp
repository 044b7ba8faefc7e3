#include "routing/kinds.h"

#include <algorithm>
#include <array>
#include <regex>

#include "routing/names.h"

namespace torchdion::routing {

namespace {

using Sizes = std::vector<int64_t>;

constexpr std::array kExperts = {"gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"};
constexpr std::array kExpertsOfRows = {"w1", "v1", "w2"};  // DBRX's
// What has several dimensions and is no matrix: vectors that are looked up or added, and factors entry by entry.
constexpr std::array kNoMatrix = {
    R"(bias|^rpb$)",  // of positions and of experts; DiNAT calls those of relative positions rpb
    R"((^|_)pos(_|$)|(^|_)position|encoding)",
    R"(emb(ed(ding)?s?)?\d*(_|$))",  // of classes and masks; VITS' emb_rel_k, of relative positions
    R"(token|table|prompt|latent|probe|registers?$|codebook|codevector|^quer(y|ies)$)",
    R"(^(?![wW]_)(\w*_)?(scale|gain|gamma|beta|alpha|lambda|temperature)_?\d*$|logit_scale)",  // w_beta is a gate
    R"(^A_logs?$|^Ds?$|^dt_b)",                                                                // of state space models
    R"(^time_(?!\w*_w\d))",  // RWKV's factors, whose time_..._w1 are matrices
};
constexpr const char* kGain = R"(weight\w*_g$)";                    // a gate may be called W_g
constexpr const char* kProjection = R"(proj(ection)?(_weight)?$)";  // a matrix, whatever it projects: prompts, dt

bool is_named_as_no_matrix(const std::string& key) {
  static const std::vector<std::regex> names(kNoMatrix.begin(), kNoMatrix.end());
  static const std::regex projection(kProjection);
  const auto finds = [&](const std::regex& name) { return std::regex_search(key, name); };
  return std::any_of(names.begin(), names.end(), finds) && !finds(projection);
}

// The name of one of a list is that of the list.
std::string key_of(const Parameter& parameter) {
  const bool is_of_a_list = parameter.key.find_first_not_of("0123456789") == std::string::npos;
  const std::size_t end = parameter.name.rfind('.');
  if (!is_of_a_list || end == std::string::npos) return parameter.key;
  const std::size_t begin = end == 0 ? std::string::npos : parameter.name.rfind('.', end - 1);
  return parameter.name.substr(begin + 1, end - begin - 1);
}

bool is_no_matrix(const Module& owner, const Parameter& parameter) {
  const Sizes& sizes = parameter.sizes;
  const auto long_sides = std::count_if(sizes.begin(), sizes.end(), [](int64_t n) { return n > 1; });
  if (long_sides <= 1 || lower(owner.class_name).find("norm") != std::string::npos) return true;
  return is_named_as_no_matrix(key_of(parameter));
}

bool are_experts(const Module& owner, const Parameter& parameter) {
  return contains(kExperts, parameter.key) ||
         lower(parameter.name + " " + owner.class_name).find("expert") != std::string::npos;
}

// Those of DBRX lie below one another in two dimensions, (experts · ffn, hidden). So do those of w2, whose fan-in comes
// first; but blocks cannot say so, and its shape factor is that of w1.
bool are_experts_of_rows(const Module& owner, const Parameter& parameter) {
  return parameter.sizes.size() == 2 && contains(kExpertsOfRows, parameter.key) && owner.experts > 0 &&
         parameter.sizes[0] % owner.experts == 0;
}

// Whether stacks are (experts, in, out): by sizes where one is fused, else by transformers' mark.
bool is_fan_in_first(const Module& owner) {
  const Sizes &fused = owner.gate_up_proj, &plain = owner.down_proj;
  if (fused.size() == 3 && plain.size() == 3) {
    if (fused[1] == plain[2] && fused[2] == 2 * plain[1]) return true;
    if (fused[1] == 2 * plain[2] && fused[2] == plain[1]) return false;
  }
  return owner.is_transposed;
}

Form form_of_experts(const Module& owner, const Parameter& parameter) {
  if (are_experts_of_rows(owner, parameter)) {
    return {.batch_dims = 0, .blocks = owner.experts, .skip_zero_gradients = true};
  }
  Form form{.batch_dims = 1, .fan_in_first = is_fan_in_first(owner), .skip_zero_gradients = true};
  // Fused along the columns (Llama 4) or interleaved (GPT-OSS) they are one matrix.
  const bool is_fused = parameter.key == "gate_up_proj" && owner.is_concatenated && parameter.sizes[1] % 2 == 0;
  if (is_fused && !*form.fan_in_first) form.blocks = 2;
  return form;
}

}  // namespace

bool is_embedding(const Module& owner, const Parameter& parameter) {
  if (owner.layer == Layer::embedding || owner.layer == Layer::embedding_bag) return true;
  return parameter.key == "weight" && owner.class_name.find("Embedding") != std::string::npos;
}

bool is_gain(const std::string& key) {
  static const std::regex gain(kGain);
  return std::regex_search(key, gain);
}

Kind kind_of(const Module& owner, const Parameter& parameter) {
  const std::size_t dims = parameter.sizes.size();
  if (is_embedding(owner, parameter)) return Kind::embedding;
  if (dims < 2 || is_gain(parameter.key)) return Kind::vector;
  if (owner.layer == Layer::convolution) return Kind::convolution;
  if (owner.layer == Layer::transposed_convolution) return Kind::transposed;
  if (owner.layer == Layer::linear && parameter.key.starts_with("weight") && dims == 2) return Kind::matrix;
  if (owner.layer == Layer::attention && parameter.key == "in_proj_weight") return Kind::fused;
  if (is_no_matrix(owner, parameter)) return Kind::vector;
  if (are_experts_of_rows(owner, parameter)) return Kind::stack;
  if (dims != 3) return Kind::matrix;
  return are_experts(owner, parameter) ? Kind::stack : Kind::guessed;
}

Form form_of(Kind kind, const Module& owner, const Parameter& parameter) {
  const Sizes& sizes = parameter.sizes;
  switch (kind) {
    case Kind::convolution:
      return {.batch_dims = 0, .fan_in_first = false};
    case Kind::transposed:
      return {.batch_dims = 0, .fan_in_first = true};
    case Kind::fused:
      return {.blocks = 3};
    case Kind::guessed:  // a stack has fewer matrices than they have rows or columns; kernels and (width, heads, head)
                         // more
      return {.batch_dims = sizes[0] <= std::min(sizes[1], sizes[2]), .fan_in_first = false};
    case Kind::stack:
      return form_of_experts(owner, parameter);
    default:
      return {};
  }
}

}  // namespace torchdion::routing
