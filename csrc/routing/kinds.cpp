#include "routing/kinds.h"

#include <algorithm>
#include <array>
#include <regex>

#include "routing/guesses.h"
#include "routing/names.h"

namespace torchdion::routing {

namespace {

using Sizes = std::vector<int64_t>;

constexpr std::array kExperts = {"gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"};
constexpr std::array kExpertsOfRows = {"w1", "v1", "w2"};  // DBRX's
// Names of parameters that have several dimensions and are no matrices: vectors that are looked up or added, factors
// entry by entry, samples of fields.
constexpr std::array kNoMatrix = {
    R"(bias|^rpb$|^_?b_)",  // of positions and of experts; DiNAT calls those of relative positions rpb
    R"((^|_)pos(_|$)|(^|_)position|encoding|^_?W_pos$)",
    R"(emb(ed(ding)?s?)?\d*(_|$)|^wte$|^wpe$|^W_(E|token_type)$)",  // VITS' emb_rel_k is of relative positions
    R"(token|table|prompt|latent|probe|registers?$|codebook|codevector|^quer(y|ies)$)",
    R"((^|_)\w*norm(_|$)|(^|_)ln(_|$))",
    R"((^|_)(tri)?planes?(_|\d|$)|(^|_)(voxels?|volume|grids?|texture|feature_?maps?|canvas)(_|\d|$))",
    R"(^(?![wW]_)(\w*_)?(scale|gain|gamma|beta|alpha|lambda|temperature)_?\d*$|logit_scale)",  // w_beta is a gate
    R"(^A_logs?$|^Ds?$|^dt_b)",                                                                // of state space models
    R"(^time_(?!\w*_w\d))",  // RWKV's factors, whose time_..._w1 are matrices
};
// Names that only matrices have.
constexpr std::array kMatrix = {
    R"((^|_)weights?(_|\d|$)|weights?$|(^|_)kernels?(_|\d|$)|(^|_)matri(x|ces)(_|\d|$))",
    R"(^_?[wW]\d*$|^_?[wW]_\w+$|_[wW]\d*$|^[wW](q|k|v|o|r|i|h|x|g|in|out|qkv|kv)(_?\d+)?$)",
    R"((^|_)(proj(ection)?s?|projector|linear|dense|fc\d*|qkv|router|gate)(_|\d|$))",
    R"(^[qkvor]$|^(in|out|up|down|kv)$|(^|_)lora_?([abAB]|up|down)$)",
};
constexpr const char* kTable = R"(^weight|^W_E$|^lora_)";  // an embedding's, and loralib's factors of its change
constexpr const char* kStackOfLens = R"(^_?W_[QKVO]$)";    // transformer_lens' (heads, in, out)
constexpr const char* kGain = R"(weight\w*_g$)";           // a gate may be called W_g
constexpr const char* kProjection = R"(proj(ection)?(_weight)?$)";  // a matrix, whatever it projects: prompts, dt
constexpr const char* kRankOfKernel = R"((\d)[dD])";                // in the names of convolutions

// Adapters, by the names of PEFT, loralib and torchtune.
// Rows of an embedding, or factors of its change whose columns are looked up.
constexpr const char* kAdapterRows = "trainable_tokens_delta|trainable_embedding|(lora|hira)_embedding_A";
// Packed entries of skew-symmetric matrices, axes of reflections, kernels of circulant matrices, coefficients of
// vectors or of fixed matrices, lengths of rows.
constexpr const char* kAdapterVectors =
    "oft_(embedding_)?[rRs]|hra_u|c3a_kernel|vblora_(vector_bank|logits_[AB])|randlora_(lambda|gamma)|"
    "p?vera_lambda_[bd]|frod_lambda_l|ia3_l|boft_s|lora_(E|diag|magnitude_vector)|beft_bias|prefix_task_(rows|cols)|"
    "module_logits";
// Factors of a change of weights, of which some are kernels where the layer is a convolution.
constexpr const char* kAdapterMatrices =
    "(\\w*lora|hira|adamss|lily)_[AB]|(lora|hira)_embedding_B|deft_[PR]|[bp]s?oft_R|(miss|bone)_block|[UV]_low|"
    "(hada|lokr)_w[12](_[ab])?|(hada|lokr)_t[12]";
constexpr const char* kAdapterKernels = "(hada|lokr)_\\w+|hira_[AB]";

// The dicts of PEFT stand between such a name and the end: "q_proj.oft_R.default.weight".
constexpr std::size_t kAdapterDepth = 3;

enum class Name { says_nothing, of_a_matrix, of_no_matrix };

Name name_of(const std::string& key) {
  static const std::vector<std::regex> no_matrix(kNoMatrix.begin(), kNoMatrix.end());
  static const std::vector<std::regex> matrix(kMatrix.begin(), kMatrix.end());
  static const std::regex projection(kProjection);
  const auto finds = [&](const std::regex& name) { return std::regex_search(key, name); };
  if (std::any_of(no_matrix.begin(), no_matrix.end(), finds) && !finds(projection)) return Name::of_no_matrix;
  return std::any_of(matrix.begin(), matrix.end(), finds) ? Name::of_a_matrix : Name::says_nothing;
}

// Reads its key, or else that of the list that holds it.
Name name_of(const Module& owner, const Parameter& parameter) {
  for (const std::string& key : keys_of(owner, parameter)) {
    if (name_of(key) != Name::says_nothing) return name_of(key);
  }
  return Name::says_nothing;
}

bool is_no_matrix(const Module& owner, const Parameter& parameter) {
  const Sizes& sizes = parameter.sizes;
  const auto long_sides = std::count_if(sizes.begin(), sizes.end(), [](int64_t n) { return n > 1; });
  const Name name = name_of(owner, parameter);
  if (long_sides <= 1 || name == Name::of_no_matrix) return true;
  // TransformerEngine's LayerNormMLP has fc1_weight.
  return owner.layer == Layer::normalization && (name != Name::of_a_matrix || parameter.key.starts_with("weight"));
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

// How many dimensions count the matrices of a stack, or the kernels of one.
int64_t matrices_from(const Parameter& parameter) {
  const auto dims = static_cast<int64_t>(parameter.sizes.size());
  return dims == 3 ? 1 : batch_dims_by_shape(parameter.sizes, /*is_named=*/true).value_or(dims - 2);
}

// True for stacks (experts, in, out): told by sizes where one is fused, else by transformers' mark.
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
  Form form{
      .batch_dims = matrices_from(parameter), .fan_in_first = is_fan_in_first(owner), .skip_zero_gradients = true};
  // Fused along the columns (Llama 4) or interleaved (GPT-OSS) they are one matrix.
  const bool is_halved = parameter.sizes[*form.batch_dims] % 2 == 0;
  const bool is_fused = parameter.key == "gate_up_proj" && owner.is_concatenated && is_halved;
  if (is_fused && !*form.fan_in_first) form.blocks = 2;
  return form;
}

// Kernels of more dimensions than their class counts are several: modulated ones, (1, out, in, k, k).
Form form_of_convolution(const Module& owner, const Parameter& parameter) {
  static const std::regex rank(kRankOfKernel);
  std::smatch found;
  if (!std::regex_search(owner.class_name, found, rank)) return {.batch_dims = 0, .fan_in_first = false};
  const int64_t further = static_cast<int64_t>(parameter.sizes.size()) - 2 - std::stoi(found[1].str());
  return {.batch_dims = std::max<int64_t>(0, further), .fan_in_first = false};
}

// For guessed parameters; none where nothing says that they are matrices.
std::optional<int64_t> batch_dims_of(const Module& owner, const Parameter& parameter) {
  if (parameter.sizes.size() == 2) return 0;
  return batch_dims_by_shape(parameter.sizes, name_of(owner, parameter) == Name::of_a_matrix);
}

// None: no adapter calls a parameter so.
std::optional<Kind> kind_of_adapter(const Module& owner, const Parameter& parameter) {
  static const std::regex rows(kAdapterRows), vectors(kAdapterVectors), matrices(kAdapterMatrices),
      kernels(kAdapterKernels);
  const std::vector<std::string> parts = parts_of(parameter.name);
  const std::size_t dims = parameter.sizes.size();
  for (std::size_t i = parts.size(); i-- > 0 && i + kAdapterDepth >= parts.size();) {
    if (std::regex_match(parts[i], rows)) return Kind::embedding;
    if (std::regex_match(parts[i], vectors)) return Kind::vector;
    if (owner.layer == Layer::convolution || dims < 2 || !std::regex_match(parts[i], matrices)) continue;
    if (dims == 2) return Kind::matrix;
    return std::regex_match(parts[i], kernels) ? Kind::convolution : Kind::stack;
  }
  return std::nullopt;
}

}  // namespace

bool is_embedding(const Module& owner, const Parameter& parameter) {
  if (owner.layer != Layer::embedding && owner.layer != Layer::embedding_bag) return false;
  static const std::regex table(kTable);
  return std::regex_search(parameter.key, table) && !is_gain(parameter.key);
}

bool is_gain(const std::string& key) {
  static const std::regex gain(kGain);
  return std::regex_search(key, gain);
}

Kind kind_of(const Module& owner, const Parameter& parameter) {
  const std::size_t dims = parameter.sizes.size();
  if (is_embedding(owner, parameter)) return Kind::embedding;
  if (const std::optional<Kind> kind = kind_of_adapter(owner, parameter)) return *kind;
  if (dims < 2 || is_gain(parameter.key)) return Kind::vector;
  if (owner.layer == Layer::convolution) return Kind::convolution;
  if (owner.layer == Layer::transposed_convolution) return Kind::transposed;
  if (owner.layer == Layer::linear && parameter.key.starts_with("weight") && dims == 2) return Kind::matrix;
  if (owner.layer == Layer::attention && parameter.key == "in_proj_weight") return Kind::fused;
  if (is_no_matrix(owner, parameter)) return Kind::vector;
  if (are_experts_of_rows(owner, parameter) || (dims > 2 && are_experts(owner, parameter))) return Kind::stack;
  static const std::regex stack_of_lens(kStackOfLens);
  if (dims == 3 && std::regex_match(parameter.key, stack_of_lens)) return Kind::stack;
  if (dims > 2) return batch_dims_of(owner, parameter) ? Kind::guessed : Kind::unknown;
  if (name_of(owner, parameter) == Name::says_nothing) return Kind::unknown;
  if (parameter.is_fan_in_first) return Kind::transposed;
  // The weight of a module that nothing tells to be linear may be a table.
  return parameter.key == "weight" && owner.layer == Layer::other ? Kind::guessed : Kind::matrix;
}

Form form_of(Kind kind, const Module& owner, const Parameter& parameter) {
  switch (kind) {
    case Kind::convolution:
      return form_of_convolution(owner, parameter);
    case Kind::transposed:
      return {.batch_dims = 0, .fan_in_first = true};
    case Kind::fused:
      return {.blocks = 3};
    case Kind::guessed:
      return {.batch_dims = batch_dims_of(owner, parameter), .fan_in_first = false};
    case Kind::stack:
      if (are_experts_of_rows(owner, parameter) || are_experts(owner, parameter)) {
        return form_of_experts(owner, parameter);
      }
      return {.batch_dims = matrices_from(parameter), .fan_in_first = parameter.is_fan_in_first};
    default:
      return {};
  }
}

}  // namespace torchdion::routing
