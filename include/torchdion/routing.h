// Routes the parameters of a model to their update rules, as Table 1 of the paper does.
#pragma once

#include <torchdion/optimizer.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace torchdion {

// Groups for Dion or Muon by the kind of each trainable parameter (arXiv 2504.05295, Section 3.2 and Table 1):
//
//   matrices, convolutions         the optimizer's algorithm; blocks(3) for in_proj_weight of MultiheadAttention;
//                                  batch_dims and skip_zero_gradients(true) for stacks of experts, with
//                                  fan_in_first(true) where gate_up_proj and down_proj are (experts, in, out), else
//                                  blocks(2) for gate_up_proj
//   embeddings                     options.scalar_algorithm(), no weight decay
//   the output head, d_in wide     the same, lr_multiplier 1 / sqrt(d_in)
//   biases, norms, other vectors   the same, lr_multiplier 1
//
// in the order of their modules' registration, so that groups and parameters are those of Python's param_groups.
//
// Layers of other types are known by their classes (ColumnParallelLinear, TokenTable), by a bias, and else by their
// names (wte, q_proj, lm_head). Raw parameters that only look like matrices are vectors, by their names: learned
// positions, class, mask and query tokens, biases and scales of several dimensions, feature planes, A_log and D of
// state space models.
//
// Other raw parameters of three or more dimensions are taken for what their shape says, with one warning that names
// them: stacks (layers, heads, m, n) where no dimension in front of the last two is longer than these, kernels
// (out, in, k, k) and (copies, out, in, k, k), and of three dimensions one matrix each where the name says that they
// are matrices. What neither a layer nor a name nor a shape tells is updated as a vector, and the same warning names
// it. options.batch_dims() is what all of three or more dimensions have that would be guessed or unknown.
//
// A weight that several stages of a pipeline hold, an embedding on the first and the output layer on the last, needs
// one rule on all of them: give heads on each stage, the embedding's name on the first.
//
// heads: names of the modules that are output layers. None: every Linear tied to an Embedding, every one called
// lm_head, head, head_dist, unembed, unembedding, embed_out or output_projection, and `output` or `output_layer` of the
// model itself. Where there is none: the last Linear with as many outputs as the largest embedding of tokens has
// entries, with a warning if there are several. Else the last Linear of each child of the model that is called
// classifier, classification_head, cls_classifier, distillation_classifier, classifier_distill, logits_proj,
// qa_outputs, qa_classifier or answer_head, or else head, heads, head_dist, score or fc and stands at the end. An
// embedding tied to the head counts as the head. Throws c10::ValueError for a head that names no module with a weight
// of two or more dimensions.
//
// strict: throws c10::ValueError where the warning would speak of a guessed or unknown parameter.
//
// options: DionOptions or MuonOptions, of every group: those that the optimizer is made with do not reach groups which
// have some.
//
//   torchdion::Dion optimizer(torchdion::param_groups(*model, torchdion::DionOptions(0.02)));
std::vector<torch::optim::OptimizerParamGroup> param_groups(const torch::nn::Module& model, const Options& options,
                                                            const std::vector<std::string>& heads = {},
                                                            bool strict = false);

}  // namespace torchdion
