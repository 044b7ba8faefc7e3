#include "routing/heads.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <map>

#include "routing/kinds.h"
#include "routing/names.h"
#include "words.h"

namespace torchdion::routing {

namespace {

using Ids = std::unordered_set<int64_t>;
using Modules = std::vector<const Module*>;

constexpr std::array kHeads = {"lm_head",     "head",      "head_dist",        "unembed",
                               "unembedding", "embed_out", "output_projection"};
// torchtitan's and Megatron's; deeper in a model they are names of any layer's output.
constexpr std::array kTopLevelHeads = {"output", "output_layer"};
// Children of a model that are its classifiers, wherever they stand, and such as are none but at the end.
constexpr std::array kClassifiers = {
    "classifier",         "classification_head", "cls_classifier", "distillation_classifier",
    "classifier_distill", "logits_proj",         "qa_outputs",     "qa_classifier",
    "answer_head"};
constexpr std::array kLastClassifiers = {"head", "heads", "head_dist", "score", "fc"};
// Words in the names of embeddings that count something else than tokens.
constexpr std::array kNoVocabulary = {
    "pos",      "posemb",    "position", "positions", "positional", "wpe",       "relative", "rel",
    "row",      "rows",      "column",   "columns",   "point",      "points",    "time",     "times",
    "timestep", "timesteps", "type",     "types",     "seg",        "segment",   "segments", "level",
    "levels",   "code",      "codes",    "codebook",  "codebooks",  "quantizer", "speaker",  "speakers",
    "lang",     "langs",     "mask",     "masks",     "query",      "queries"};
constexpr std::array kWeights = {"weight", "weight_orig", "weight_v", "W_E", "W_U"};
constexpr const char* kParametrized = "parametrizations.weight.";

// The name, in the caller's language, of the option that names the output layers.
const char* option_of_heads() { return in_python() ? "head" : "heads"; }

// True if an embedding may have an entry for each token, by its name and class: others are of positions, types, ...
bool counts_tokens(const Module& embedding) {
  if (embedding.class_name.find("Position") != std::string::npos) return false;
  const std::vector<std::string> path = path_of(embedding.name);
  const std::vector<std::string> words = path.empty() ? path : words_of(path.back());
  const auto is_of_something_else = [](const std::string& word) { return contains(kNoVocabulary, word); };
  return std::none_of(words.begin(), words.end(), is_of_something_else);
}

// The weights of modules, by the modules' names: of weight_norm its directions, of a LoRA parametrization its factors;
// of a wrapper the weight that it shows.
class Weights {
 public:
  explicit Weights(const Model& model) {
    for (const Parameter& parameter : model.parameters) {
      for (std::size_t begin = 0; begin != std::string::npos; begin = parameter.name.find('.', begin)) {
        begin += begin > 0;  // behind the dot
        const std::string in_module = parameter.name.substr(begin);
        if (!contains(kWeights, in_module) && !in_module.starts_with(kParametrized)) continue;
        Ids& ids = computed_from_[begin == 0 ? "" : parameter.name.substr(0, begin - 1)];
        if (parameter.sizes.size() >= 2 && !is_gain(parameter.key)) ids.insert(parameter.id);
      }
    }
  }

  Ids of(const Module& module) const {
    const auto found = computed_from_.find(module.name);
    if (found != computed_from_.end()) return found->second;
    return module.shown_weight == 0 ? Ids() : Ids{module.shown_weight};
  }
  Ids of(const Modules& modules) const {
    Ids ids;
    for (const Module* module : modules) ids.merge(of(*module));
    return ids;
  }

 private:
  std::map<std::string, Ids> computed_from_;  // also by modules whose weight has fewer dimensions
};

Ids given(const Model& model, const std::vector<std::string>& heads, const Weights& weights) {
  Ids all;
  for (const std::string& head : heads) {
    const auto is_named = [&](const Module& module) { return module.name == head; };
    const auto found = std::find_if(model.modules.begin(), model.modules.end(), is_named);
    Ids ids = found == model.modules.end() ? Ids() : weights.of(*found);
    TORCH_CHECK_VALUE(!ids.empty(), prefix(), option_of_heads(),
                      " must name a module with a weight of two or more dimensions, got ", shown_name(head));
    all.merge(ids);
  }
  return all;
}

Modules of_layer(const Model& model, Layer layer) {
  Modules found;
  for (const Module& module : model.modules) {
    if (module.layer == layer) found.push_back(&module);
  }
  return found;
}

// What a model says of itself: a layer, or what holds several.
Modules declared(const Model& model, const Weights& weights) {
  Modules layers;
  for (const std::size_t index : model.declared) {
    const Module& holder = model.modules[index];
    if (!weights.of(holder).empty()) {
      layers.push_back(&holder);
      continue;
    }
    for (const Module* linear : of_layer(model, Layer::linear)) {
      if (holder.name.empty() || linear->name.starts_with(holder.name + ".")) layers.push_back(linear);
    }
  }
  return layers;
}

Modules tied_or_named(const Model& model, const Modules& linears, const Weights& weights) {
  const Ids embeddings = weights.of(of_layer(model, Layer::embedding));
  const auto is_tied = [&](int64_t id) { return embeddings.contains(id); };
  Modules found;
  for (const Module* linear : linears) {
    const Ids own = weights.of(*linear);
    if (is_name_of_head(path_of(linear->name)) || std::any_of(own.begin(), own.end(), is_tied)) found.push_back(linear);
  }
  return found;
}

// The last Linear with as many outputs as the largest embedding of tokens has entries.
Modules as_wide_as_the_vocabulary(const Model& model, const Modules& linears, std::vector<std::string>& warnings) {
  int64_t vocabulary = 0;
  for (const Module* embedding : of_layer(model, Layer::embedding)) {
    if (counts_tokens(*embedding)) vocabulary = std::max(vocabulary, embedding->width);
  }
  Modules wide;
  for (const Module* linear : linears) {
    if (vocabulary > 0 && linear->width == vocabulary) wide.push_back(linear);
  }
  if (wide.size() > 1) {
    warnings.push_back(c10::str(prefix(), wide.size(), " Linears have the ", vocabulary,
                                " outputs of the vocabulary, from ", shown_name(wide.front()->name), " to ",
                                shown_name(wide.back()->name), ", of which the last is taken for the head; ",
                                in_python() ? "head= names it" : "heads names it"));
    wide.erase(wide.begin(), wide.end() - 1);
  }
  return wide;
}

// The last Linear of each of the model's children that are called classifiers.
Modules classifiers(const Modules& linears) {
  std::vector<std::string> children;
  std::map<std::string, const Module*> last_of;
  for (const Module* linear : linears) {
    const std::vector<std::string> path = path_of(linear->name);
    if (path.empty()) continue;
    if (!last_of.contains(path.front())) children.push_back(path.front());
    last_of[path.front()] = linear;
  }
  Modules found;
  for (const std::string& child : children) {
    if (contains(kClassifiers, child)) found.push_back(last_of[child]);
  }
  if (!found.empty()) return found;
  for (auto child = children.rbegin(); child != children.rend() && contains(kLastClassifiers, *child); ++child) {
    found.push_back(last_of[*child]);
  }
  return found;
}

// Of the warning about half a tie:

bool is_of_tokens(const Module& module) { return module.layer == Layer::embedding && counts_tokens(module); }

// The module of the first trained parameter for which something holds; nullptr: it holds for none.
const Module* first_owner(const Model& model, const auto& holds) {
  const auto is_found = [&](const Parameter& one) { return one.is_trained && holds(model.modules[one.owner], one); };
  const auto found = std::find_if(model.parameters.begin(), model.parameters.end(), is_found);
  return found == model.parameters.end() ? nullptr : &model.modules[found->owner];
}

// More outputs than inputs, as vocabularies have.
bool is_wide(const Parameter& weight) {
  const int64_t first = weight.sizes.front(), last = weight.sizes.back();
  return weight.is_fan_in_first ? last > first : first > last;
}

bool has_bias(const Model& model, const Module& module) {
  return first_owner(model, [&](const Module& owner, const Parameter& one) {
    return &owner == &module && one.key.find("bias") != std::string::npos;
  });
}

}  // namespace

bool is_name_of_head(const std::vector<std::string>& path) {
  if (path.empty()) return false;
  return contains(kHeads, path.back()) || (path.size() == 1 && contains(kTopLevelHeads, path.front()));
}

Ids head_weights(const Model& model, const std::optional<std::vector<std::string>>& heads,
                 std::vector<std::string>& warnings) {
  const Weights weights(model);
  if (heads) return given(model, *heads, weights);
  const Modules linears = of_layer(model, Layer::linear);
  Modules found = declared(model, weights);
  for (const Module* layer : tied_or_named(model, linears, weights)) found.push_back(layer);
  if (found.empty()) found = as_wide_as_the_vocabulary(model, linears, warnings);
  return weights.of(found.empty() ? classifiers(linears) : found);
}

void warn_of_half_a_tie(const Model& model, const Ids& heads, std::vector<std::string>& warnings) {
  const Module* head = first_owner(model, [&](const Module& owner, const Parameter& one) {
    return heads.contains(one.id) && is_name_of_head(path_of(owner.name)) && is_wide(one);
  });
  const bool has_embedding = std::any_of(model.modules.begin(), model.modules.end(), is_of_tokens);
  if (head && !has_embedding && !has_bias(model, *head)) {
    warnings.push_back(c10::str(prefix(), shown_name(head->name),
                                " is an output layer in a model without an embedding, as on the last stage of a "
                                "pipeline; ",
                                option_of_heads(),
                                " must name it here and, if the two are tied, the embedding on its stage, so that "
                                "their copies stay equal"));
  }
  const Module* embedding =
      first_owner(model, [](const Module& owner, const Parameter&) { return is_of_tokens(owner); });
  const auto is_place_of_head = [](const std::string& name) { return is_name_of_head(path_of(name)); };
  const bool has_place = std::any_of(model.absent.begin(), model.absent.end(), is_place_of_head);
  if (embedding && heads.empty() && has_place) {
    warnings.push_back(c10::str(prefix(), shown_name(embedding->name),
                                " is an embedding in a model without its output layer, as on the first stage of a "
                                "pipeline; ",
                                option_of_heads(),
                                " must name it if the two are tied, so that their copies stay equal, and be empty "
                                "if not"));
  }
}

}  // namespace torchdion::routing
