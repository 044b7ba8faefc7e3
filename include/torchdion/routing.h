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
//   matrices, convolutions         Dion with `options`
//   embeddings                     options.scalar_algorithm(), no weight decay
//   the output head, d_in wide     the same, lr_multiplier 1 / sqrt(d_in)
//   biases, norms, other vectors   the same, lr_multiplier 1
//
// in the order of their modules' registration, so that groups and parameters are those of Python's param_groups.
//
// heads: names of the modules that are output layers. None: every Linear called lm_head, head, unembed, unembedding,
// embed_out or output_projection; where there is none, every Linear whose out_features is the num_embeddings of an
// Embedding. An embedding tied to the head counts as the head. Throws c10::ValueError for a head that names no module
// with a weight.
//
//   torchdion::Dion optimizer(torchdion::param_groups(*model, torchdion::DionOptions(0.02)));
std::vector<torch::optim::OptimizerParamGroup> param_groups(const torch::nn::Module& model,
                                                            const DionOptions& options = {},
                                                            const std::vector<std::string>& heads = {});

}  // namespace torchdion
