// Routes the parameters of a model to their update rules, as Table 1 of the paper does.
#pragma once

#include <torchdion/optim.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace torchdion {

// Groups for Dion by the kind of each trainable parameter (arXiv 2504.05295, Section 3.2 and Table 1):
//
//   matrices, convolutions         Dion with `options`; blocks(3) for in_proj_weight of MultiheadAttention;
//                                  batch_dims(1).skip_zero_gradients(true) for three-dimensional stacks of experts,
//                                  with fan_in_first(true) where gate_up_proj and down_proj are (experts, in, out),
//                                  else blocks(2) for gate_up_proj
//   embeddings                     options.scalar_algorithm(), no weight decay
//   the output head, d_in wide     the same, lr_multiplier 1 / sqrt(d_in)
//   biases, norms, other vectors   the same, lr_multiplier 1
//
// in the order of their modules' registration, so that groups and parameters are those of Python's param_groups.
//
// Raw parameters that only look like matrices are vectors, by their names: learned positions, class, mask and query
// tokens, biases and scales of several dimensions, A_log and D of state space models.
//
// heads: names of the modules that are output layers. None: every Linear tied to an Embedding, every one called
// lm_head, head, unembed, unembedding, embed_out or output_projection, and `output` of the model itself. Where there is
// none: the last Linear with as many outputs as the largest embedding of tokens has entries, with a warning if there
// are several. Else the last Linear of all, if the model calls it, or what it is the last of, head, heads, classifier,
// classification_head, score, fc or qa_outputs. An embedding tied to the head counts as the head. Throws
// c10::ValueError for a head that names no module with a weight.
//
//   torchdion::Dion optimizer(torchdion::param_groups(*model, torchdion::DionOptions(0.02)));
std::vector<torch::optim::OptimizerParamGroup> param_groups(const torch::nn::Module& model,
                                                            const DionOptions& options = {},
                                                            const std::vector<std::string>& heads = {});

}  // namespace torchdion
