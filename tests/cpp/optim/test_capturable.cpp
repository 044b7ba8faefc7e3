// Steps that a CUDA graph may capture, on the CPU: what lies on the device, who decides, what ranks still say.
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include <limits>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

const DionOptions kCapturable = DionOptions(0.1).rank_fraction(0.5).capturable(true);

DionOptions& options_at(Dion& optimizer, std::size_t group) {
  return static_cast<DionOptions&>(optimizer.param_groups()[group].options());
}

TEST(DionCapturable, StepsAreThoseOfAnyOtherWithNumbersAndWithTensors) {
  for (const Orthonormalize method : {Orthonormalize::automatic, Orthonormalize::rcqr}) {
    for (const bool as_tensors : {false, true}) {
      const Model model, other = model.clone();
      DionOptions options = DionOptions(0.1).rank_fraction(0.5).weight_decay(0.125).orthonormalize(method);
      Dion reference(other.groups(options));
      take_steps(reference, other, 0, 3);
      if (as_tensors) {
        options.lr(7).lr_tensor(at::full({}, 0.1, at::kDouble));
        options.weight_decay(7).weight_decay_tensor(at::full({1}, 0.125, at::kDouble));
      }
      Dion optimizer(model.groups(options.capturable(true)));
      take_steps(optimizer, model, 0, 3);
      expect_bitwise_equal(model.params(), other.params());
      EXPECT_EQ(optimizer.state_of(model.weight).step().item<double>(), 3);
      EXPECT_EQ(optimizer.state_of(model.weight).step().scalar_type(), at::kFloat);
    }
  }
}

TEST(DionCapturable, ASchedulerWritesIntoTheTensorThatEachStepReads) {
  const Model model, other = model.clone();
  const at::Tensor lr = at::full({}, 0.5, at::kDouble);
  Dion optimizer(std::vector<at::Tensor>{model.weight}, DionOptions().lr_tensor(lr).capturable(true));
  Dion reference(std::vector<at::Tensor>{other.weight}, DionOptions(0.5));
  torch::optim::StepLR schedule(optimizer, 1, 0.5), its(reference, 1, 0.5);
  for (int step = 0; step < 3; ++step) {
    take_steps(optimizer, model, step, 1);
    take_steps(reference, other, step, 1);
    schedule.step();
    its.step();
  }
  EXPECT_EQ(lr.item<double>(), 0.125);  // LibTorch's schedule begins with a step that changes nothing
  EXPECT_EQ(options_at(optimizer, 0).get_lr(), 0.125);
  expect_bitwise_equal({model.weight}, {other.weight});
}

TEST(DionCapturable, ASkippedStepChangesNothingAndIsCounted) {
  const Model model;
  DionOptions options = kCapturable;
  Dion optimizer(model.groups(options.nonfinite(Nonfinite::skip_step)));
  take_steps(optimizer, model, 0, 1);
  std::vector<at::Tensor> all = model.params();
  for (const at::Tensor& param : model.params()) {
    all.push_back(optimizer.state_of(param).momentum());
    all.push_back(optimizer.state_of(param).step());
  }
  const std::vector<at::Tensor> before = Model::snapshot(all);
  model.give_gradients(1);
  model.bias.grad()[2] = std::numeric_limits<double>::quiet_NaN();
  optimizer.step();
  expect_bitwise_equal(all, before);
  EXPECT_EQ(optimizer.stats().steps, 2);
  EXPECT_EQ(optimizer.stats().skipped_steps, 1);
  EXPECT_EQ(optimizer.stats().nonfinite_entries, 1);
}

TEST(DionCapturable, HoldsForTheWholeOptimizer) {
  const Model model;
  const std::string sentence = "torchdion::Dion: capturable ",
                    alike = sentence + "must be the same in all groups, got ";
  EXPECT_EQ(message_of([&] { Dion(model.groups(), DionOptions().capturable(true)); }),
            sentence + "holds for the whole optimizer and must be that of the defaults, got false (parameter group 0)");
  std::vector<OptimizerParamGroup> groups = model.groups();
  static_cast<DionOptions&>(groups[1].options()).capturable(true);
  EXPECT_EQ(message_of([&] { Dion optimizer(groups); }), alike + "true (parameter group 1) beside false");
  Dion optimizer(model.groups(kCapturable));
  optimizer.add_param_group(OptimizerParamGroup({at::zeros({3, 2})}));
  EXPECT_TRUE(options_at(optimizer, 3).capturable());
  options_at(optimizer, 2).capturable(false);
  EXPECT_EQ(message_of([&] { optimizer.step(); }), alike + "false (parameter group 2) beside true");
}

struct RefusalCase {
  DionOptions options;
  std::string sentence;
};

class CapturableRefuses : public testing::TestWithParam<RefusalCase> {};

TEST_P(CapturableRefuses, InOneSentence) {
  EXPECT_EQ(message_of([] {
              Dion(std::vector<at::Tensor>{at::zeros({3, 2})}, GetParam().options);
            }),
            "torchdion::Dion: " + GetParam().sentence);
}

DionOptions with_lr(const at::Tensor& tensor) { return DionOptions().lr_tensor(tensor); }

INSTANTIATE_TEST_SUITE_P(
    Options, CapturableRefuses,
    testing::Values(
        RefusalCase{DionOptions().capturable(true).nonfinite(Nonfinite::raise),
                    "nonfinite(Nonfinite::raise) cannot be combined with capturable(true): the host would wait for the "
                    "device"},
        RefusalCase{DionOptions().capturable(true).orthonormalize(Orthonormalize::qr),
                    "orthonormalize(Orthonormalize::qr) cannot be combined with capturable(true): the host would wait "
                    "for the device"},
        RefusalCase{with_lr(at::full({}, -1.0)), "lr_tensor must hold a finite number ≥ 0, got -1"},
        RefusalCase{with_lr(at::ones({2})),
                    "lr_tensor must be a tensor of one floating-point number, got CPUFloatType of shape [2]"},
        RefusalCase{DionOptions().weight_decay_tensor(at::ones({}, at::kLong)),
                    "weight_decay_tensor must be a tensor of one floating-point number, got CPULongType of shape []"}));

TEST(DionCapturable, StatesMoveBetweenOptimizersThatAreAndThatAreNot) {
  for (const bool first : {true, false}) {
    const Model model;
    DionOptions options = kCapturable;
    Dion optimizer(model.groups(options.capturable(first)));
    take_steps(optimizer, model, 0, 2);
    const Model other = model.clone();
    Dion resumed(other.groups(options.capturable(!first)));
    resumed.load_state_dict(optimizer.state_dict());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(options_at(resumed, i).capturable(), !first);
    take_steps(optimizer, model, 2, 2);
    take_steps(resumed, other, 2, 2);
    expect_bitwise_equal(model.params(), other.params());
  }
}

TEST(DionCapturable, ALoadedRateIsWrittenIntoTheTensorOrRefusedWhereGroupsShareIt) {
  const Model model, other = model.clone();
  Dion optimizer(model.groups(DionOptions(0.25)));
  const at::Tensor lr = at::full({}, 0.5, at::kDouble);
  Dion resumed(other.groups(with_lr(lr)));
  resumed.load_state_dict(optimizer.state_dict());
  EXPECT_EQ(lr.item<double>(), 0.25);
  options_at(optimizer, 1).lr(0.75);
  EXPECT_EQ(message_of([&] { resumed.load_state_dict(optimizer.state_dict()); }),
            "torchdion::Dion: lr must be the same in groups that share its tensor, got 0.75 beside 0.25 (parameter "
            "group 1)");
  EXPECT_EQ(lr.item<double>(), 0.25);
}

TEST(DionCapturable, RanksAgreeAtTheirFirstStepOnlyAndAMissingGradientIsZeroLater) {
  const Model model;
  DionOptions options = kCompressed;
  options.capturable(true);
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, options), reference(model, axes, 2, kCompressed);
    for (ModelOnMesh* each : {&training, &reference}) each->step(0);
    const int64_t calls = axes.dp.traffic().agreement.calls;
    training.step(1);
    EXPECT_EQ(axes.dp.traffic().agreement.calls, calls);
    reference.step(1);
    for (ModelOnMesh* each : {&training, &reference}) {
      if (axes.rank == 0) each->local.weight.mutable_grad() = at::Tensor();
      each->optimizer.step();
    }
    expect_bitwise_equal(training.local.params(), reference.local.params());
    training.optimizer.resize_rank();  // changes what ranks have agreed on
    const int64_t after = axes.dp.traffic().agreement.calls;
    training.step(2);
    EXPECT_EQ(axes.dp.traffic().agreement.calls - after, 1);
  });
}

TEST(DionCapturable, MomentaThatOnlyReplaysTookApartAreKnownByTheStepsTaken) {
  const Model model;
  DionOptions options = kCompressed;
  options.capturable(true);
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, options);
    training.step(0);
    training.optimizer.synchronize_for_checkpoint();
    EXPECT_EQ(message_of([&] { training.optimizer.state_dict(); }), "");
    training.optimizer.state_of(training.local.weight).step().add_(1);  // as a replay does
    EXPECT_NE(message_of([&] { training.optimizer.state_dict(); }).find("call synchronize_for_checkpoint()"),
              std::string::npos);
    training.optimizer.synchronize_for_checkpoint();
    EXPECT_EQ(message_of([&] { training.optimizer.state_dict(); }), "");
  });
}

}  // namespace

}  // namespace torchdion
