#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>

#include "algorithms/options_by_name.h"
#include "algorithms/textbook.h"
#include "engine/state.h"
#include "optim/model.h"

namespace torchdion {

namespace {

at::Tensor start_of_Q(const std::vector<int64_t>& sizes, int64_t parameter, const algorithms::Options& options) {
  const algorithms::State& Q = algorithms::algorithm("dion").states[1];
  return engine::start_of(Q, sizes, sizes, options, parameter, at::kDouble);
}

TEST(Dion, UpdatesEachParameterByItsOwnRule) {
  const Model model;
  const std::vector<at::Tensor> start = Model::snapshot(model.params());
  Dion optimizer(model.groups());
  model.give_gradients(1);
  optimizer.step();

  const algorithms::Options dion =
      algorithms::options_of(algorithms::algorithm("dion"), {{"lr", 0.1}, {"rank_fraction", 0.5}});
  algorithms::Options stack = dion;
  stack.set("batch_dims", int64_t{1});
  stack.set("orientation", std::string_view("left"));
  algorithms::Textbook weight{start[0], at::zeros({12, 20}, at::kDouble), start_of_Q({12, 20}, 0, dion), dion};
  weight.step(model.weight.grad(), Orientation::right);
  EXPECT_LE(travel_error(model.weight.detach(), weight.X, start[0]), 1e-12);

  algorithms::Textbook experts{start[3], at::zeros({3, 8, 10}, at::kDouble), start_of_Q({3, 8, 10}, 3, stack), stack};
  experts.step(model.experts.grad(), Orientation::left);
  EXPECT_LE(travel_error(model.experts.detach(), experts.X, start[3]), 1e-12);

  EXPECT_LE(travel_error(model.bias.detach(), start[2] * (1 - 0.1 * 0.01) - 0.1 * model.bias.grad().sign(), start[2]),
            1e-14);
  EXPECT_LE(
      travel_error(model.vector.detach(), start[4] * (1 - 0.05 * 0.01) - 0.05 * model.vector.grad().sign(), start[4]),
      1e-7);  // AdamW's first step is the sign, but for ε
}

TEST(Dion, StateOfAParameterIsReadable) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 3);
  EXPECT_EQ(optimizer.state_of(model.weight).Q().sizes(), (std::vector<int64_t>{12, 6}));
  EXPECT_EQ(optimizer.state_of(model.experts).Q().sizes(), (std::vector<int64_t>{3, 10, 4}));
  EXPECT_EQ(optimizer.state_of(model.weight).momentum().sizes(), model.weight.sizes());
  EXPECT_EQ(optimizer.state_of(model.vector).variance().sizes(), model.vector.sizes());
  EXPECT_FALSE(optimizer.state_of(model.bias).Q().defined());
  EXPECT_EQ(optimizer.state_of(model.bias).step().item<double>(), 3);
}

TEST(Dion, StateOfAParameterHasTheTensorsThatItsAlgorithmDeclaresByName) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  const auto names = [&](const at::Tensor& param) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : optimizer.state_of(param).tensors()) names.push_back(name);
    return names;
  };
  EXPECT_EQ(names(model.weight), (std::vector<std::string>{"Q", "momentum", "step"}));
  EXPECT_EQ(names(model.bias), (std::vector<std::string>{"momentum", "step"}));
  EXPECT_EQ(names(model.vector), (std::vector<std::string>{"momentum", "step", "variance"}));
  const ParamState& state = optimizer.state_of(model.weight);
  EXPECT_TRUE(state.tensor("Q").is_same(state.Q()));
  EXPECT_FALSE(state.tensor("nothing").defined());
}

TEST(Dion, StatsCountStepsAndBatches) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 3);
  EXPECT_EQ(optimizer.stats().steps, 3);
  EXPECT_EQ(optimizer.stats().skipped_steps, 0);
  EXPECT_EQ(optimizer.stats().batches, 5);  // two shapes, a stack, Lion and AdamW
  EXPECT_EQ(optimizer.stats().columns_without_signal, 0);
}

TEST(Dion, StatsCountColumnsWithoutSignal) {
  const at::Tensor X = at::ones({6, 4});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5));
  X.mutable_grad() = at::ones({6, 4});
  for (int step = 0; step < 3; ++step) optimizer.step();
  EXPECT_EQ(optimizer.stats().columns_without_signal, 3) << "one of P's two at each step: the gradients have rank one";
}

TEST(Dion, ClosureComputesTheLossWithGradientsAndItsResultIsReturned) {
  const at::Tensor X = Model::leaf({6, 4}, 1);
  Dion optimizer(std::vector<at::Tensor>{X}, DionOptions(0.01));
  const at::AutoGradMode no_grad(false);
  at::Tensor first, last;
  for (int step = 0; step < 20; ++step) {
    last = optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor loss = X.square().sum();
      loss.backward();
      return loss;
    });
    if (step == 0) first = last;
  }
  EXPECT_LT(last.item<double>(), first.item<double>());
}

TEST(Dion, ParametersWithoutGradientsAreLeftAloneAndHaveNoState) {
  const Model model;
  Dion optimizer(model.groups());
  model.give_gradients(1);
  at::Tensor frozen = model.square;
  frozen.mutable_grad() = at::Tensor();
  const at::Tensor before = model.square.detach().clone();
  optimizer.step();
  EXPECT_TRUE(bitwise_equal(model.square.detach(), before));
  EXPECT_EQ(message_of([&] { optimizer.state_of(model.square); }).find("torchdion::Dion: a parameter of shape [9, 9]"),
            0);
}

TEST(Dion, ZeroGradClearsTheGradientsOfAllGroups) {
  const Model model;
  Dion optimizer(model.groups());
  model.give_gradients(1);
  optimizer.zero_grad();
  for (const at::Tensor& param : model.params()) EXPECT_FALSE(param.grad().defined());
}

TEST(Dion, AddedGroupTakesTheDefaultsOrItsOwnOptions) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight}, DionOptions(0.25).rank_fraction(0.25));
  optimizer.add_param_group(OptimizerParamGroup({model.square}));
  optimizer.add_param_group(OptimizerParamGroup({model.bias}, std::make_unique<DionOptions>(0.5)));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.25);
  EXPECT_EQ(optimizer.param_groups()[2].options().get_lr(), 0.5);
  take_steps(optimizer, model, 0, 1);
  EXPECT_EQ(optimizer.state_of(model.square).Q().sizes(), (std::vector<int64_t>{9, 3}));
}

TEST(Dion, LearningRateSchedulersOfLibTorchDriveEveryGroup) {
  const Model model;
  Dion optimizer(model.groups());
  torch::optim::StepLR halves(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  take_steps(optimizer, model, 0, 1);
  halves.step();  // LibTorch's first only counts
  halves.step();
  for (const OptimizerParamGroup& group : optimizer.param_groups()) EXPECT_EQ(group.options().get_lr(), 0.05);
  torch::optim::ReduceLROnPlateauScheduler plateau(optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.1f, 0);
  plateau.step(1.0f);
  plateau.step(2.0f);
  for (const OptimizerParamGroup& group : optimizer.param_groups()) EXPECT_NEAR(group.options().get_lr(), 0.005, 1e-9);
  // The rate is used: a step of rate 0 changes nothing.
  for (OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(0);
  const std::vector<at::Tensor> before = Model::snapshot(model.params());
  take_steps(optimizer, model, 1, 1);
  expect_bitwise_equal(model.params(), before);
}

TEST(Dion, StateKeepsTheConfiguredDtypes) {
  const Model model;
  const DionOptions options = DionOptions(0.1).momentum_dtype(at::kFloat).Q_dtype(at::kBFloat16);
  Dion optimizer(std::vector<at::Tensor>{model.weight}, options);
  take_steps(optimizer, model, 0, 2);
  EXPECT_EQ(optimizer.state_of(model.weight).momentum().scalar_type(), at::kFloat);
  EXPECT_EQ(optimizer.state_of(model.weight).Q().scalar_type(), at::kBFloat16);
}

struct LionOfAll : Optimizer {
  explicit LionOfAll(std::vector<at::Tensor> params, const Options& defaults = {})
      : Optimizer("lion", "tests::LionOfAll", {OptimizerParamGroup(std::move(params))}, defaults) {}
};

TEST(Optimizer, UpdatesMatricesByTheAlgorithmOfItsClassAndSpeaksByItsName) {
  const Model model;
  const at::Tensor start = model.weight.detach().clone();
  LionOfAll optimizer({model.weight}, Options(0.125).weight_decay(0.5));
  model.give_gradients(1);
  optimizer.step();
  EXPECT_LE(travel_error(model.weight.detach(), start * (1 - 0.125 * 0.5) - 0.125 * model.weight.grad().sign(), start),
            1e-14);
  EXPECT_FALSE(optimizer.state_of(model.weight).Q().defined());
  EXPECT_EQ(static_cast<const Options&>(optimizer.param_groups()[0].options()).algorithm(), "lion");
  EXPECT_EQ(message_of([&] { LionOfAll({model.square}, Options(-1)); }),
            "tests::LionOfAll: lr must be a finite number ≥ 0, got -1");
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(3); }), "tests::LionOfAll: state_dict must be a dict, got int");
}

TEST(Dion, MovedOptimizerGoesOn) {
  const Model model, twin = model.clone();
  Dion first(model.groups()), reference(twin.groups());
  take_steps(first, model, 0, 2);
  Dion second = std::move(first);
  take_steps(second, model, 2, 2);
  take_steps(reference, twin, 0, 4);
  expect_bitwise_equal(model.params(), twin.params());
  EXPECT_EQ(second.stats().steps, 4);
}

TEST(Dion, IsUsableThroughTheBaseClass) {
  const Model model;
  std::unique_ptr<torch::optim::Optimizer> optimizer = std::make_unique<Dion>(model.groups());
  const at::Tensor before = model.weight.detach().clone();
  model.give_gradients(1);
  optimizer->step();
  EXPECT_FALSE(bitwise_equal(model.weight.detach(), before));
}

}  // namespace

}  // namespace torchdion
