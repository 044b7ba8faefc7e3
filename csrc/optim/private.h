// What a Dion object holds beside what every torch::optim::Optimizer does.
#pragma once

#include <string>
#include <vector>

#include "optim/options.h"

namespace torchdion {

struct Dion::Private {
  DionStats stats;
  std::string broken;                   // why the parameters are no longer what any step leaves; empty: they are
  std::vector<optim::Entries> unknown;  // of each group that was loaded: the entries that are no options of ours

  void refuse_if_broken() const { TORCH_CHECK(broken.empty(), "torchdion::Dion: ", broken, "; load a checkpoint"); }
};

namespace optim {

std::string group_name(std::size_t index);
const DionOptions& options_of(const torch::optim::OptimizerParamGroup& group, std::size_t index);

// Throws c10::ValueError with one sentence for what no step could use: an option, a parameter, one that is given twice.
void check_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups, const DionOptions& defaults);

}  // namespace optim

}  // namespace torchdion
