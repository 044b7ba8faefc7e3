#include "routing/adapters.h"

#include <array>
#include <regex>

#include "routing/names.h"

namespace torchdion::routing {

namespace {

// Rows of an embedding, or factors of its change whose columns are looked up.
constexpr const char* kRows = "trainable_tokens_delta|trainable_embedding|(lora|hira)_embedding_A";
// Packed entries of skew-symmetric matrices, axes of reflections, kernels of circulant matrices, coefficients of
// vectors or of fixed matrices, lengths of rows.
constexpr const char* kVectors =
    "oft_(embedding_)?[rRs]|hra_u|c3a_kernel|vblora_(vector_bank|logits_[AB])|randlora_(lambda|gamma)|"
    "p?vera_lambda_[bd]|frod_lambda_l|ia3_l|boft_s|lora_(E|diag|magnitude_vector)|beft_bias|prefix_task_(rows|cols)|"
    "module_logits";
// Factors of a change of weights, of which some are kernels where the layer is a convolution.
constexpr const char* kMatrices =
    "(\\w*lora|hira|adamss|lily)_[AB]|(lora|hira)_embedding_B|deft_[PR]|[bp]s?oft_R|(miss|bone)_block|[UV]_low|"
    "(hada|lokr)_w[12](_[ab])?|(hada|lokr)_t[12]";
constexpr const char* kKernels = "(hada|lokr)_\\w+|hira_[AB]";

// The dicts of PEFT stand between such a name and the end: "q_proj.oft_R.default.weight".
constexpr std::size_t kDepth = 3;

}  // namespace

std::optional<Kind> kind_of_adapter(const Module& owner, const Parameter& parameter) {
  static const std::regex rows(kRows), vectors(kVectors), matrices(kMatrices), kernels(kKernels);
  const std::vector<std::string> parts = parts_of(parameter.name);
  const std::size_t dims = parameter.sizes.size();
  for (std::size_t i = parts.size(); i-- > 0 && i + kDepth >= parts.size();) {
    if (std::regex_match(parts[i], rows)) return Kind::embedding;
    if (std::regex_match(parts[i], vectors)) return Kind::vector;
    if (owner.layer == Layer::convolution || dims < 2 || !std::regex_match(parts[i], matrices)) continue;
    if (dims == 2) return Kind::matrix;
    return std::regex_match(parts[i], kernels) ? Kind::convolution : Kind::stack;
  }
  return std::nullopt;
}

}  // namespace torchdion::routing
