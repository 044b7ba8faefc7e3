// What one rank alone cannot do: its own sentence there, one that says so on the others, and nothing is done.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <limits>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

using Call = std::function<void(Dion&)>;

const std::string kForeignOptions =
    "torchdion::Dion: the options of a group must be torchdion::Options (parameter group 0)";
const std::string kForeignState = "torchdion::Dion: the state of a parameter must be a torchdion::ParamState";

std::string another_refused(const std::string& what) {
  return "torchdion::Dion: another rank refused " + what + ", and its error says why";
}

// Everything that begins with a handshake.
std::vector<std::pair<std::string, Call>> calls_of_all_ranks() {
  return {{"this step", [](Dion& optimizer) { optimizer.step(); }},
          {"resize_rank()", [](Dion& optimizer) { optimizer.resize_rank(); }},
          {"synchronize_for_checkpoint()", [](Dion& optimizer) { optimizer.synchronize_for_checkpoint(); }},
          {"check_replicas()", [](Dion& optimizer) { optimizer.check_replicas(); }},
          {"synchronize_replicas()", [](Dion& optimizer) { optimizer.synchronize_replicas(); }},
          {"whole_state_dict()", [](Dion& optimizer) { optimizer.whole_state_dict(); }}};
}

void put_a_foreign_state(Dion& optimizer, const at::Tensor& param) {
  optimizer.state()[param.unsafeGetTensorImpl()] = std::make_unique<torch::optim::AdamWParamState>();
}

// The first rank cannot, and says why; the others are told.
void expect_refused_by_the_first(const MeshAxes& axes, Dion& optimizer, const std::string& own,
                                 const std::vector<std::string>& names) {
  for (const auto& [name, call] : calls_of_all_ranks()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const std::string sentence = message_of([&, call = call] { call(optimizer); });
    EXPECT_EQ(sentence.find(axes.rank == 0 ? own : another_refused(name)), 0) << name << ": " << sentence;
  }
}

std::vector<std::string> names_of_all_calls() {
  std::vector<std::string> names;
  for (const auto& [name, call] : calls_of_all_ranks()) names.push_back(name);
  return names;
}

TEST(DionRefusalOfARank, ThatAnEarlierStepBrokeReachesTheOthers) {
  comm::Meeting meeting(2);
  std::atomic<int> fails_at_the_first = -1;
  meeting.delay = [&](int rank, int index) {
    if (rank == 0 && index == fails_at_the_first) throw std::runtime_error("connection lost");
  };
  comm::on_every_rank(&meeting, [&](Axis unnamed) {
    const Axis axis = comm::axis_of(&meeting, unnamed.rank, {.name = "dp"});
    const at::Tensor param = Model::leaf({12, 20}, 1);
    Dion optimizer(std::vector<at::Tensor>{param}, kCompressed);
    optimizer.set_layout(param, {.replicas = axis, .sizes = {12, 20}});
    at::Tensor(param).mutable_grad() = normal(param.sizes(), 3);
    optimizer.step();
    const auto count = [&] { return static_cast<int>(meeting.logs[axis.rank].size()); };
    const int before = count();
    optimizer.step();
    if (axis.rank == 0) fails_at_the_first = 2 * count() - before - 1;  // the last collective of one more step
    const std::string lost = message_of([&] { optimizer.step(); });
    EXPECT_EQ(lost.empty(), axis.rank == 1) << lost;
    MeshAxes axes;
    axes.rank = axis.rank;
    expect_refused_by_the_first(axes, optimizer, "torchdion::Dion: the last step failed after 0 of 1 batches",
                                {"this step", "resize_rank()", "synchronize_for_checkpoint()", "whole_state_dict()"});
  });
}

TEST(DionRefusalOfARank, WhoseGroupHasAnotherOptimizersOptionsReachesTheOthers) {
  const Model model;
  for (const bool capturable : {false, true}) {
    DionOptions options = kCompressed;
    Mesh({2, 2, 1}).run([&, options = options.capturable(capturable)](MeshAxes axes) {
      ModelOnMesh training(model, axes, 2, options);
      Dion& optimizer = training.optimizer;
      if (!capturable) training.step(0);  // else the first, as no later one waits for what ranks say
      const auto own = optimizer.param_groups()[0].options().clone();
      if (axes.rank == 0) optimizer.param_groups()[0].set_options(std::make_unique<torch::optim::AdamWOptions>());
      expect_refused_by_the_first(axes, optimizer, kForeignOptions, names_of_all_calls());
      optimizer.param_groups()[0].set_options(own->clone());
      EXPECT_EQ(message_of([&] { training.step(1); }), "");
    });
  }
}

TEST(DionRefusalOfARank, WithAStateOfAnotherOptimizerReachesTheOthersAlsoWithoutAGradient) {
  const Model model;
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    training.local.weight.mutable_grad().reset();
    if (axes.rank == 0) put_a_foreign_state(training.optimizer, training.local.weight);
    expect_refused_by_the_first(axes, training.optimizer, kForeignState, names_of_all_calls());
  });
}

TEST(DionRefusalOfARank, WhoseOptionsFitNoParameterReachesTheOthersOrIsADifference) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    auto& options = static_cast<DionOptions&>(training.optimizer.param_groups()[0].options());
    if (axes.rank == 0) options.blocks(5);  // of 12 rows
    for (const auto& [name, call] : calls_of_all_ranks()) {
      const std::string sentence = message_of([&, call = call] { call(training.optimizer); });
      const bool is_difference = sentence.find("must agree on the blocks of parameter group 0") != std::string::npos;
      const bool is_refusal = sentence.find(axes.rank == 0 ? "blocks must divide" : another_refused(name)) < 30;
      EXPECT_TRUE(is_difference || is_refusal) << name << ": " << sentence;
    }
  });
}

TEST(DionRefusalOfARank, ReachesThoseThatHoldCopies) {
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    const Model model;
    Dion local(model.groups());
    take_steps(local, model, 0, 1);
    if (axes.rank == 0) put_a_foreign_state(local, model.square);
    const bool is_on_its_line = axes.fs.rank == 0;
    const auto expected = [&](const std::string& name) {
      return !is_on_its_line ? "" : axes.rank == 0 ? kForeignState : another_refused(name);
    };
    EXPECT_EQ(message_of([&] { local.check_replicas(axes.dp); }), expected("check_replicas()"));
    EXPECT_EQ(message_of([&] { local.synchronize_replicas(axes.dp); }), expected("synchronize_replicas()"));
    // Who holds copies of what one line disagrees about hears of it too.
    ModelOnMesh cut(model, {{}, axes.fs, {}, axes.rank}, 1, kCompressed);
    cut.step(0);
    cut.local.weight.requires_grad_(axes.rank != 0);
    const std::string sentence = message_of([&] { cut.optimizer.check_replicas(axes.dp); });
    EXPECT_NE(sentence.find(axes.rank == 3 ? "other ranks of the job disagree" : "must agree on the requires_grad of"),
              std::string::npos)
        << sentence;
    cut.local.weight.requires_grad_();
    EXPECT_EQ(message_of([&] { cut.optimizer.check_replicas(axes.dp); }), "");
  });
}

TEST(DionRefusalOfARank, OfAStateThatIsOnlyNeededForAGradientOfOthersReachesThem) {
  const Model model;
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    const std::vector<at::Tensor> before = Model::snapshot(training.local.params());
    const at::Tensor param = training.local.square;
    auto& state = static_cast<ParamState&>(*training.optimizer.state().at(param.unsafeGetTensorImpl()));
    const at::Tensor momentum = state.momentum();
    if (axes.rank == 0)
      at::Tensor(param).mutable_grad().reset(), state.tensor("momentum", at::zeros({2, 2}, at::kDouble));
    const std::string sentence = message_of([&] { training.optimizer.step(); });
    const std::string expected = axes.rank == 0 ? "momentum of parameter 1 " : another_refused("this step");
    EXPECT_NE(sentence.find(expected), std::string::npos) << sentence;
    expect_bitwise_equal(training.local.params(), before);
    state.tensor("momentum", momentum);
    EXPECT_EQ(message_of([&] { training.optimizer.step(); }), "");
    training.optimizer.check_replicas();
  });
}

TEST(DionDifference, OfWhetherAStateExistsIsToldWhereItWouldBeGathered) {
  const Model model;
  const DionOptions options = DionOptions(kCompressed).nonfinite(Nonfinite::skip_step);
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, options), fresh(model, axes, 2, options);
    const c10::IValue none = fresh.optimizer.state_dict();
    for (std::size_t i = 0; i < training.layouts.size(); ++i) {
      at::Tensor param = training.local.params()[i];
      param.mutable_grad() = at::full_like(param, std::numeric_limits<double>::quiet_NaN());
    }
    training.optimizer.step();
    training.optimizer.synchronize_for_checkpoint();
    ASSERT_EQ(training.optimizer.state_of(training.local.weight).step().item<double>(), 0) << "a skipped step";
    if (axes.rank == 0) training.optimizer.load_state_dict(none);
    for (const auto& [name, call] : calls_of_all_ranks()) {
      if (name == "this step" || name == "synchronize_for_checkpoint()") continue;
      const std::string sentence = message_of([&, call = call] { call(training.optimizer); });
      const bool is_far = axes.rank == 3;
      const std::string expected = is_far ? "other ranks" : "must agree on the steps taken of parameter 0";
      EXPECT_NE(sentence.find(expected), std::string::npos) << name << ": " << sentence;
    }
    training.step(1);  // begins anew there, as what has taken no step does
  });
}

}  // namespace

}  // namespace torchdion
