#include "optim/heads.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <regex>
#include <sstream>

#include "optim/kinds.h"

namespace torchdion::optim {

namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;
using torch::nn::Module;

// The tables of names are those of Python's heads.py.
constexpr std::array kHeads = {"lm_head",     "head",      "head_dist",        "unembed",
                               "unembedding", "embed_out", "output_projection"};
constexpr const char* kTopLevelHead = "output";  // deeper in a model it is the name of any layer's output
// Children of a model that are its classifiers, wherever they stand, and such as are none but at the end.
constexpr std::array kClassifiers = {
    "classifier",         "classification_head", "cls_classifier", "distillation_classifier",
    "classifier_distill", "logits_proj",         "qa_outputs",     "qa_classifier",
    "answer_head"};
constexpr std::array kLastClassifiers = {"head", "heads", "head_dist", "score", "fc"};
// What wrappers add to the names of modules: anywhere, and in front of all.
constexpr std::array kInserted = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"};
constexpr std::array kWrapped = {"model", "base_model", "net"};
// Words in the names of embeddings that count something else than tokens.
constexpr std::array kNoVocabulary = {
    "pos",      "posemb",    "position", "positions", "positional", "wpe",       "relative", "rel",
    "row",      "rows",      "column",   "columns",   "point",      "points",    "time",     "times",
    "timestep", "timesteps", "type",     "types",     "seg",        "segment",   "segments", "level",
    "levels",   "code",      "codes",    "codebook",  "codebooks",  "quantizer", "speaker",  "speakers",
    "lang",     "langs",     "mask",     "masks",     "query",      "queries"};
constexpr const char* kWord = "[A-Z]+(?![a-z])|[A-Z]?[a-z]+";

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
  for (std::string part; std::getline(parts, part, '.');) {
    if (!contains(kInserted, part)) path.push_back(part);
  }
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
      const at::Tensor* known = parameters.find("weight");
      if (known && known->dim() >= 2) weight = *known;
    }
    TORCH_CHECK_VALUE(weight.defined(),
                      "torchdion::param_groups: heads must name modules with a weight of two or more dimensions, got ",
                      head);
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

bool counts_no_tokens(const std::string& name, const Module& embedding) {
  static const std::regex word(kWord);
  const std::string last = name.substr(name.rfind('.') + 1);
  for (std::sregex_iterator found(last.begin(), last.end(), word), end; found != end; ++found) {
    if (contains(kNoVocabulary, lower(found->str()))) return true;
  }
  return class_of(embedding).find("Position") != std::string::npos;
}

// The last Linear with as many outputs as the largest embedding of tokens has entries.
Weights as_wide_as_the_vocabulary(const NamedModules& modules, const std::vector<NamedLinear>& linears) {
  int64_t vocabulary = 0;
  for (const auto& [name, module] : modules) {
    const auto* embedding = module->as<EmbeddingImpl>();
    if (!embedding || counts_no_tokens(name, *module)) continue;
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

// The last Linear of each of the model's children that are called classifiers.
Weights classifiers(const std::vector<NamedLinear>& linears) {
  Weights found, at_the_end;
  bool is_at_the_end = true;
  std::string child;
  for (auto linear = linears.rbegin(); linear != linears.rend(); ++linear) {
    const std::vector<std::string> path = path_of(linear->name);
    if (path.empty() || path.front() == child) continue;
    child = path.front();
    const void* weight = linear->module->weight.unsafeGetTensorImpl();
    if (contains(kClassifiers, child)) found.insert(weight);
    is_at_the_end = is_at_the_end && contains(kLastClassifiers, child);
    if (is_at_the_end) at_the_end.insert(weight);
  }
  return found.empty() ? at_the_end : found;
}

}  // namespace

Weights head_weights(const NamedModules& modules, const std::vector<std::string>& heads) {
  if (!heads.empty()) return given(modules, heads);
  std::vector<NamedLinear> linears;
  for (const auto& [name, module] : modules) {
    if (const auto* linear = module->as<LinearImpl>()) linears.push_back({name, linear});
  }
  Weights found = tied_or_named(modules, linears);
  if (found.empty()) found = as_wide_as_the_vocabulary(modules, linears);
  return found.empty() ? classifiers(linears) : found;
}

}  // namespace torchdion::optim
