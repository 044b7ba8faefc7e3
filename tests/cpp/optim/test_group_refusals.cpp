// Groups that no step could use together, or with the states that there are.
#include <gtest/gtest.h>

#include "optim/model.h"

namespace torchdion {

namespace {

TEST(DionRefuses, OptionsOfAnotherOptimizer) {
  struct OtherOptions : torch::optim::OptimizerCloneableOptions<OtherOptions> {};
  const Model model;
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{model.weight}, std::make_unique<OtherOptions>());
  EXPECT_EQ(message_of([&] { Dion optimizer(groups); }),
            "torchdion::Dion: the options of a group must be torchdion::Options (parameter group 0)");
}

TEST(DionRefuses, GroupsThatDisagreeOnNonfinite) {
  const Model model;
  const std::string sentence =
      "torchdion::Dion: nonfinite holds for the whole optimizer and must be that of the defaults, got "
      "Nonfinite::propagate (parameter group 0)";
  EXPECT_EQ(message_of([&] { Dion(model.groups(), DionOptions().nonfinite(Nonfinite::raise)); }), sentence);
}

TEST(DionTakes, AGroupMoreUnderThePolicyThatTheOthersHave) {
  const Model model;
  Dion optimizer(model.groups(DionOptions().nonfinite(Nonfinite::zero)));
  optimizer.add_param_group(OptimizerParamGroup({at::zeros({3, 2})}));
  const auto& added = static_cast<const DionOptions&>(optimizer.param_groups().back().options());
  EXPECT_EQ(added.nonfinite(), Nonfinite::zero);
}

TEST(DionRefuses, AnotherAlgorithmForAMatrixThatHasAQ) {
  const at::Tensor param = Model::leaf({6, 4}, 1);
  Dion optimizer(std::vector<at::Tensor>{param});
  at::Tensor{param}.mutable_grad() = normal(param.sizes(), 2);
  optimizer.step();
  const at::Tensor before = param.detach().clone();
  auto& options = static_cast<DionOptions&>(optimizer.param_groups()[0].options());
  const std::string sentence =
      "torchdion::Dion: the algorithm of parameter 0 (parameter group 0) of shape [6, 4] must stay \"dion\"";
  options.batch_dims(1);
  EXPECT_EQ(message_of([&] { optimizer.step(); }).substr(0, sentence.size()), sentence);
  options.batch_dims(std::nullopt).algorithm("lion");
  EXPECT_EQ(message_of([&] { optimizer.step(); }).substr(0, sentence.size()), sentence);
  EXPECT_TRUE(bitwise_equal(param.detach(), before));
}

TEST(DionRefuses, APolicyThatIsSetInOneGroupAlone) {
  const Model model;
  Dion optimizer(model.groups(), DionOptions());
  static_cast<DionOptions&>(optimizer.param_groups()[1].options()).nonfinite(Nonfinite::raise);
  EXPECT_EQ(message_of([&] { optimizer.step(); }),
            "torchdion::Dion: nonfinite must be the same in all groups, got Nonfinite::raise (parameter group 1) "
            "beside Nonfinite::propagate");
}

}  // namespace

}  // namespace torchdion
