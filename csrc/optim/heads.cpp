#include "optim/heads.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <regex>
#include <sstream>

namespace torchdion::optim {

namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;
using torch::nn::Module;

constexpr std::array kHeads = {"lm_head", "head", "unembed", "unembedding", "embed_out", "output_projection"};
constexpr const char* kTopLevelHead = "output";  // deeper in a model it is the name of any layer's output
constexpr std::array kClassifiers = {"head", "heads", "classifier", "classification_head", "score", "fc", "qa_outputs"};
constexpr std::array kWrapped = {"module", "model", "base_model", "net"};  // in front of the names of a wrapped model

struct NamedLinear {
  std::string name;
  const LinearImpl* module;
};

bool contains(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A module's name, from the top of the model that wrappers hold.
std::vector<std::string> path_of(const std::string& name) {
  std::vector<std::string> path;
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) path.push_back(part);
  while (path.size() > 1 && contains(kWrapped, path.front())) path.erase(path.begin());
  return path;
}

Weights given(const NamedModules& modules, const std::vector<std::string>& heads) {
  Weights weights;
  for (const std::string& head : heads) {
    const auto found =
        std::find_if(modules.begin(), modules.end(), [&](const auto& item) { return item.first == head; });
    at::Tensor weight;
    if (found != modules.end()) {
      const auto parameters = found->second->named_parameters(/*recurse=*/false);
      if (const at::Tensor* known = parameters.find("weight")) weight = *known;
    }
    TORCH_CHECK_VALUE(weight.defined(), "torchdion::param_groups: heads must name modules with a weight, got ", head);
    weights.insert(weight.unsafeGetTensorImpl());
  }
  return weights;
}

Weights tied_or_named(const NamedModules& modules, const std::vector<NamedLinear>& linears) {
  Weights embeddings, found;
  for (const auto& [name, module] : modules) {
    if (const auto* embedding = module->as<EmbeddingImpl>()) embeddings.insert(embedding->weight.unsafeGetTensorImpl());
  }
  for (const auto& [name, linear] : linears) {
    const void* weight = linear->weight.unsafeGetTensorImpl();
    const std::vector<std::string> path = path_of(name);
    const bool is_named =
        !path.empty() && (contains(kHeads, path.back()) || (path.size() == 1 && path.front() == kTopLevelHead));
    if (is_named || embeddings.contains(weight)) found.insert(weight);
  }
  return found;
}

// The last Linear with as many outputs as the largest embedding of tokens has entries.
Weights as_wide_as_the_vocabulary(const NamedModules& modules, const std::vector<NamedLinear>& linears) {
  // Embeddings that count something else than tokens: positions, segments, times, codes, masks.
  static const std::regex no_vocabulary(
      "pos|wpe|type|seg|relative|rel_|time|code|quant|level|layer|speaker|lang|mask|point|query");
  int64_t vocabulary = 0;
  for (const auto& [name, module] : modules) {
    const auto* embedding = module->as<EmbeddingImpl>();
    if (!embedding || std::regex_search(name.substr(name.rfind('.') + 1), no_vocabulary)) continue;
    vocabulary = std::max(vocabulary, embedding->options.num_embeddings());
  }
  std::vector<NamedLinear> wide;
  for (const NamedLinear& linear : linears) {
    if (linear.module->options.out_features() == vocabulary) wide.push_back(linear);
  }
  if (wide.empty()) return {};
  if (wide.size() > 1) {
    TORCH_WARN("torchdion::param_groups: ", wide.size(), " Linears have the ", vocabulary,
               " outputs of the vocabulary, from ", wide.front().name, " to ", wide.back().name,
               ", of which the last is taken for the head; heads names it");
  }
  return {wide.back().module->weight.unsafeGetTensorImpl()};
}

}  // namespace

Weights head_weights(const NamedModules& modules, const std::vector<std::string>& heads) {
  if (!heads.empty()) return given(modules, heads);
  std::vector<NamedLinear> linears;
  for (const auto& [name, module] : modules) {
    if (const auto* linear = module->as<LinearImpl>()) linears.push_back({name, linear});
  }
  if (linears.empty()) return {};
  Weights found = tied_or_named(modules, linears);
  if (found.empty()) found = as_wide_as_the_vocabulary(modules, linears);
  if (!found.empty()) return found;
  const std::vector<std::string> last = path_of(linears.back().name);
  if (last.empty() || !contains(kClassifiers, last.front())) return {};
  return {linears.back().module->weight.unsafeGetTensorImpl()};
}

}  // namespace torchdion::optim
