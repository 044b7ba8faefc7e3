// A model as either language describes it: what the rules of routing look at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchdion::routing {

// Layers that have rules of their own; a Bilinear is one of the convolutions. A normalization is none by its type.
enum class Layer {
  other,
  linear,
  embedding,
  embedding_bag,
  convolution,
  transposed_convolution,
  attention,
  normalization
};

struct Module {
  std::string name, class_name;  // in the model, itself ""; without namespaces
  Layer layer = Layer::other;
  int64_t width = 0;         // outputs of a Linear, entries of an Embedding
  int64_t shown_weight = 0;  // the id of a weight of two or more dimensions that a wrapper shows; 0: none
  // Holders of experts: their number where rows hold them, the sizes of two stacks, and transformers' marks.
  int64_t experts = 0;
  std::vector<int64_t> gate_up_proj = {}, down_proj = {};
  bool is_transposed = false, is_concatenated = true;
};

struct Parameter {
  std::size_t owner = 0;  // among the modules: of the weight that it is, or parametrizes
  std::string key, name;  // there, and in the model
  int64_t id = 0;         // alike for one that several modules share
  std::vector<int64_t> sizes;
  bool is_trained = true;
  std::vector<int64_t> cut_dims = {};  // of a DTensor
  bool is_fan_in_first = false;        // of transformer_lens' matrices, beside a bias as long as their last dimension
};

struct Model {
  std::vector<Module> modules;        // in the order of their registration
  std::vector<Parameter> parameters;  // in the order of their modules, more than once where modules share them
  std::vector<std::size_t> declared;  // modules that the model says are its output layers, or hold them
  std::vector<std::string> absent;    // names of modules that are None: of layers that other stages of a pipeline have
};

// The kind of a parameter; groups stand in this order. A guessed one is matrices by its shape, or one by the name
// weight; an unknown one is updated as a vector.
enum class Kind { matrix, convolution, fused, stack, guessed, transposed, embedding, vector, unknown, head };

// Options of a group that follow from what its parameters are; none: nothing is said.
struct Form {
  std::optional<int64_t> batch_dims = {}, blocks = {};
  std::optional<bool> fan_in_first = {}, skip_zero_gradients = {};
  double lr_multiplier = 1;

  bool operator==(const Form&) const = default;
};

}  // namespace torchdion::routing
