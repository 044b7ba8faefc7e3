#include "routing/layers.h"

#include <algorithm>
#include <array>
#include <map>

#include "routing/heads.h"
#include "routing/names.h"

namespace torchdion::routing {

namespace {

using Words = std::vector<std::string>;
using Sizes = std::vector<int64_t>;

// Last words of layers' class names, and words that may follow: Linear8bitLt, LinearWithBias, Conv2dSame.
constexpr std::array kLinear = {"linear", "dense", "projection", "proj", "fc"};
constexpr std::array kConvolution = {"conv", "convolution", "deconv", "deconvolution"};
constexpr std::array kVariants = {"bit",  "lt",   "nf",   "fp", "int",  "e",         "m",          "layer", "base",
                                  "with", "bias", "lora", "x",  "same", "transpose", "transposed", "d",     "module"};
// Words in the class or the name of a module that holds a matrix.
constexpr std::array kMatrixWords = {
    "linear", "lin",        "dense", "projection", "proj", "projector", "fc",      "ff",     "ffn",
    "mlp",    "attn",       "qkv",   "kv",         "q",    "k",         "v",       "o",      "query",
    "key",    "value",      "up",    "down",       "gate", "gating",    "router",  "expert", "hidden",
    "w",      "wq",         "wk",    "wv",         "wo",   "wqkv",      "in",      "out",    "input",
    "output", "classifier", "head",  "attention",  "lora", "score",     "decoder", "logits", "transform"};
constexpr std::array kEmbedding = {"emb",        "embed", "embeds", "embedder", "embedding",
                                   "embeddings", "wte",   "wpe",    "lut"};
// Last words of tables that are looked up row by row.
constexpr std::array kTableWords = {"token",     "tokens",   "table",     "tables",  "codebook",
                                    "codebooks", "vocab",    "prompt",    "prompts", "word",
                                    "words",     "position", "positions", "lookup",  "vocabulary"};
constexpr std::array kNorm = {"norm", "norms", "ln", "bn"};
// Names of weights that tell which layer has them, of torch's parametrizations and transformer_lens.
constexpr std::array kWeight = {"weight", "weight_orig", "weight_v"};
constexpr const char* kEmbeddingOfLens = "W_E";
constexpr const char* kHeadOfLens = "W_U";       // (in, out)
constexpr const char* kLinearOfGpt2 = "Conv1D";  // transformers': a Linear of weight (in, out)

bool has_any(const auto& names, const Words& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return contains(names, word); });
}

bool is_norm(const std::string& word) {
  return word.starts_with("norm") || word.ends_with("norm") || contains(kNorm, word);
}

// The last word for which that holds, if nothing but variants of a layer are behind it.
Words::const_reverse_iterator last_of(const Words& words, const auto& holds) {
  const auto last = std::find_if(words.rbegin(), words.rend(), holds);
  const auto is_variant = [](const std::string& word) { return contains(kVariants, word); };
  return std::all_of(words.rbegin(), last, is_variant) ? last : words.rend();
}

bool is_class_of_linears(const Words& words) {
  return last_of(words, [](const std::string& word) { return contains(kLinear, word); }) != words.rend();
}

bool is_class_of_embeddings(const std::string& name, const Words& words) {
  return name.find("Embedding") != std::string::npos || (!words.empty() && contains(kEmbedding, words.back()));
}

// Weights are (out, in, sizes of the kernel), or have more dimensions in front.
Layer layer_of_convolutions(const Words& words) {
  const auto last = last_of(words, [](const std::string& word) { return contains(kConvolution, word); });
  if (last == words.rend()) return Layer::other;
  const bool is_transposed = contains(words, "transpose") || contains(words, "transposed") || last->starts_with("de");
  return is_transposed ? Layer::transposed_convolution : Layer::convolution;
}

Layer layer_by_name(const Module& module) {
  const std::vector<std::string> path = path_of(module.name);
  if (is_name_of_head(path)) return Layer::linear;
  const auto named = std::find_if_not(path.rbegin(), path.rend(), is_number);  // of a list's members that of the list
  const Words words = named == path.rend() ? Words() : words_of(*named);
  const Words of_class = words_of(module.class_name);
  if (!words.empty() && contains(kMatrixWords, words.back())) return Layer::linear;
  if (has_any(kEmbedding, words) || (!of_class.empty() && contains(kTableWords, of_class.back())))
    return Layer::embedding;
  if (!words.empty() && contains(kTableWords, words.back())) return Layer::embedding;
  if (std::any_of(words.begin(), words.end(), is_norm)) return Layer::normalization;
  return has_any(kMatrixWords, words) || has_any(kMatrixWords, of_class) ? Layer::linear : Layer::other;
}

// Decides by the sizes of its weight and of its bias, which no embedding has of its rows.
Layer layer_of(const Module& module, const Sizes& weight, const Sizes& bias) {
  const Words words = words_of(module.class_name);
  if (weight.size() > 2) return module.class_name == "Bilinear" ? Layer::convolution : layer_of_convolutions(words);
  if (weight.size() < 2) return Layer::other;
  if (module.class_name == kLinearOfGpt2) return Layer::transposed_convolution;
  if (is_class_of_linears(words)) return Layer::linear;
  const bool has_bias_of_rows = bias == Sizes{weight[0]};
  if (!has_bias_of_rows && is_class_of_embeddings(module.class_name, words)) return Layer::embedding;
  if (layer_of_convolutions(words) != Layer::other) return Layer::other;  // kernels in rows
  if (has_bias_of_rows) return Layer::linear;
  if (bias == Sizes{weight[1]}) return Layer::transposed_convolution;
  return layer_by_name(module);
}

bool is_class_of_norms(const Module& module) {
  const Words words = words_of(module.class_name);
  const bool is_named_norm = std::any_of(words.begin(), words.end(), is_norm);
  return is_named_norm && !is_class_of_linears(words) && layer_of_convolutions(words) == Layer::other;
}

// The sizes of parameters by their modules and keys; empty: there is none.
using SizesOf = std::map<std::pair<std::size_t, std::string>, Sizes>;

// True for W_in (in, out) beside b_in (out), and W_Q (heads, in, out) beside b_Q (heads, out).
bool is_fan_in_first(const Parameter& parameter, SizesOf& sizes_of) {
  if (parameter.sizes.size() < 2 || !(parameter.key.starts_with("W_") || parameter.key.starts_with("_W_"))) {
    return false;
  }
  std::string bias = parameter.key;
  bias[bias.find('W')] = 'b';
  const Sizes& sizes = sizes_of[{parameter.owner, bias}];
  return parameter.key == kHeadOfLens || (!sizes.empty() && sizes.back() == parameter.sizes.back());
}

Layer layer_by_weight(const Module& module, const Parameter& parameter, SizesOf& sizes_of) {
  if (contains(kWeight, parameter.key)) return layer_of(module, parameter.sizes, sizes_of[{parameter.owner, "bias"}]);
  if (parameter.sizes.size() != 2) return Layer::other;
  if (parameter.key == kEmbeddingOfLens) return Layer::embedding;
  return parameter.key == kHeadOfLens ? Layer::linear : Layer::other;
}

}  // namespace

void recognize_layers(Model& model) {
  for (Module& module : model.modules) {
    if (module.layer != Layer::other) continue;
    if (module.class_name == "MultiheadAttention") module.layer = Layer::attention;
    if (is_class_of_norms(module)) module.layer = Layer::normalization;
  }
  SizesOf sizes_of;
  for (const Parameter& one : model.parameters) sizes_of[{one.owner, one.key}] = one.sizes;
  for (Parameter& parameter : model.parameters) {
    Module& module = model.modules[parameter.owner];
    parameter.is_fan_in_first = is_fan_in_first(parameter, sizes_of);
    if (module.layer != Layer::other) continue;
    module.layer = layer_by_weight(module, parameter, sizes_of);
    const bool is_wide = module.layer == Layer::linear || module.layer == Layer::embedding;
    if (is_wide) module.width = parameter.is_fan_in_first ? parameter.sizes.back() : parameter.sizes.front();
  }
}

}  // namespace torchdion::routing
