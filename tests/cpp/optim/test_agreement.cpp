// Ranks that disagree, miss gradients or lose each other.
#include <gtest/gtest.h>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

TEST(DionAgreement, OnOptionsIsAskedForAtEveryStepByOneMessage) {
  const Model model;
  Mesh({1, 2, 1}).run([&](MeshAxes axes) {
    const std::string sentence =
        "torchdion::Dion: the ranks of the axis 'fs' must agree on the lr of parameter group 0, got 0.";
    ModelOnMesh training(model, axes, 1, DionOptions(axes.rank == 0 ? 0.1 : 0.2));
    const at::Tensor before = training.local.weight.detach().clone();
    EXPECT_EQ(message_of([&] { training.step(0); }).substr(0, sentence.size()), sentence);
    EXPECT_TRUE(bitwise_equal(training.local.weight.detach(), before));

    ModelOnMesh agreed(model, axes, 1, kCompressed);
    agreed.step(0);
    const int64_t calls = axes.fs.traffic().agreement.calls;
    agreed.step(1);
    EXPECT_EQ(axes.fs.traffic().agreement.calls - calls, 1) << "digests alone";
    auto& options = static_cast<DionOptions&>(agreed.optimizer.param_groups()[1].options());
    if (axes.rank == 0) options.mu(0.5);
    EXPECT_NE(message_of([&] { agreed.step(2); }).find("must agree on the mu of parameter group 1, got 0."),
              std::string::npos);
    options.mu(0.95);
    agreed.step(2);
    const c10::IValue other = ModelOnMesh(model, {}, 1, kCompressed).optimizer.state_dict();
    if (axes.rank == 0) agreed.optimizer.load_state_dict(other);  // steps taken: none
    EXPECT_NE(message_of([&] { agreed.step(3); }).find("must agree on the steps taken of parameter 0"),
              std::string::npos);
  });
}

TEST(DionAgreement, OnTheSizesOfQNamesTheParameter) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    training.optimizer.synchronize_for_checkpoint();
    if (axes.rank == 0) {
      ModelOnMesh other(model, {}, 1, DionOptions(0.1).rank_fraction(0.75));
      other.step(0);
      training.optimizer.load_state_dict(other.optimizer.state_dict());
    }
    for (auto& group : training.optimizer.param_groups()) {
      static_cast<DionOptions&>(group.options()).rank_fraction(0.25);
    }
    EXPECT_NE(message_of([&] { training.step(1); }).find("must agree on the state of parameter 0 (parameter group 0)"),
              std::string::npos);
  });
}

TEST(DionAgreement, OnWhatIsCalledKeepsARankFromResizingAlone) {
  const Model model;
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    const at::Tensor Q = training.optimizer.state_of(training.local.weight).Q().clone();
    const auto call = [&](auto alone) {
      return message_of([&] { axes.rank == 3 ? alone(training.optimizer) : training.step(1); });
    };
    const auto expect = [&](const std::string& name, const std::string& message) {
      EXPECT_NE(message.find(axes.rank == 3 ? name + "() here and step()" : "step() here and " + name + "()"),
                std::string::npos)
          << message;
    };
    expect("resize_rank", call([](Dion& optimizer) { optimizer.resize_rank(); }));
    expect("check_replicas", call([](Dion& optimizer) { optimizer.check_replicas(); }));
    expect("synchronize_replicas", call([](Dion& optimizer) { optimizer.synchronize_replicas(); }));
    expect("synchronize_for_checkpoint", call([](Dion& optimizer) { optimizer.synchronize_for_checkpoint(); }));
    expect("whole_state_dict", call([](Dion& optimizer) { optimizer.whole_state_dict(); }));
    EXPECT_TRUE(bitwise_equal(training.optimizer.state_of(training.local.weight).Q(), Q));
    training.step(1);
    training.optimizer.check_replicas();
  });
}

TEST(DionAgreement, SkipsWhatNoReplicaHasAGradientOfAndZeroesWhatOneLacks) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    const auto params = training.local.params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      at::Tensor param = params[i];
      const bool is_there = i != 1 && (i != 0 || axes.rank == 0);
      param.mutable_grad() = is_there ? training.gradient(i, 0, axes.rank) : at::Tensor();
    }
    training.optimizer.step();
    EXPECT_TRUE(bitwise_equal(training.local.square.detach(), model.square.detach()));
    EXPECT_FALSE(bitwise_equal(training.local.weight.detach(), model.weight.detach()));
    training.optimizer.check_replicas();
    training.local.square.requires_grad_(axes.rank == 0);
    EXPECT_NE(
        message_of([&] { training.optimizer.step(); }).find("the requires_grad of parameter 1 (parameter group 0)"),
        std::string::npos);
  });
}

TEST(DionAgreement, TellsEveryRankThatOneCannotUpdateWhatItMissesTheGradientOf) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    at::Tensor weight = training.local.weight;
    const at::Tensor before = training.local.bias.detach().clone();
    const at::Tensor Q = training.optimizer.state_of(weight).Q();
    auto& own = static_cast<ParamState&>(*training.optimizer.state().at(weight.unsafeGetTensorImpl()));
    if (axes.rank == 1) {
      weight.mutable_grad() = at::Tensor();
      own.tensor("Q", at::empty(Q.sizes(), Q.options().device(at::kMeta)));  // of the same shape
    }
    const std::string message = message_of([&] { training.optimizer.step(); });
    EXPECT_NE(message.find(axes.rank == 1 ? "must " : "another rank refused this step, and its error says why"),
              std::string::npos)
        << message;
    EXPECT_TRUE(bitwise_equal(training.local.bias.detach(), before));
    own.tensor("Q", Q);
    training.optimizer.step();  // nothing was lost
    EXPECT_FALSE(bitwise_equal(training.local.bias.detach(), before));
  });
}

TEST(DionAgreement, MakesTheMissingGradientOfOneRankZeroThere) {
  const Model model;
  ModelOnMesh expected(model, {}, 1, kCompressed);
  const auto give = [](ModelOnMesh& training, bool misses) {
    for (std::size_t i = 0; i < training.layouts.size(); ++i) {
      at::Tensor param = training.local.params()[i];
      param.mutable_grad() = training.gradient(i, 0, 0);
      if (misses) param.mutable_grad() = at::Tensor();
    }
    training.local.square.mutable_grad() = at::Tensor();  // everywhere
  };
  give(expected, false);
  const Piece lost = Piece{6, 6};  // the rows of the second rank
  expected.local.weight.grad().narrow(0, lost.begin, lost.size).zero_();
  expected.optimizer.step();
  Mesh({1, 2, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 1, kCompressed);
    give(training, axes.rank == 1);
    training.optimizer.step();
    const at::Tensor param = training.local.weight.detach();
    const auto piece = [&](const at::Tensor& whole) { return piece_of(whole, training.layouts[0], 0); };
    EXPECT_LE(travel_error(param, piece(expected.local.weight), piece(model.weight)), 1e-11);
    EXPECT_TRUE(bitwise_equal(training.local.square.detach(), piece_of(model.square, training.layouts[1], 0)));
    EXPECT_FALSE(training.local.weight.grad().defined() && axes.rank == 1);
  });
}

// Of the vector, which tp alone shares: who is on another line of tp hears of it along fs.
TEST(DionAgreement, IsThatOfRanksOnOtherLinesOfTheLastAxisToo) {
  const Model model;
  Mesh({1, 2, 2}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 1, kCompressed);
    const auto step = [&](int number) { return message_of([&] { training.step(number); }); };
    const std::string own =
        "the ranks of the axis 'tp' must agree on the requires_grad of parameter 0 (parameter group 2)";
    training.local.vector.requires_grad_(axes.rank != 1);
    const std::string sentence = step(0);
    EXPECT_NE(sentence.find(axes.fs.rank == 0 ? own : "other ranks of the job disagree"), std::string::npos)
        << sentence;
    EXPECT_TRUE(training.optimizer.state().empty());
    training.local.vector.requires_grad_();
    EXPECT_EQ(step(0), "");
    if (axes.rank == 1) training.local.vector.mutable_grad().reset();
    EXPECT_EQ(message_of([&] { training.optimizer.step(); }), "");
    EXPECT_EQ(training.optimizer.state_of(training.local.vector).step().item<double>(), 2);
    EXPECT_EQ(step(2), "");
  });
}

TEST(DionFault, NamesAxisAndBatchAndLeavesTheOptimizerBroken) {
  comm::Meeting meeting(2);
  meeting.fails_at = 4;
  comm::on_every_rank(&meeting, [&](Axis unnamed) {
    const Axis axis = comm::axis_of(&meeting, unnamed.rank, {.name = "fs"});
    const at::Tensor param = Model::leaf({6, 20}, 1), other = Model::leaf({4, 9}, 2);
    Dion optimizer(std::vector<at::Tensor>{param, other}, kCompressed);
    optimizer.set_layout(param, {.rows = axis, .sizes = {12, 20}});
    optimizer.set_layout(other, {.rows = axis, .sizes = {8, 9}});
    for (at::Tensor each : {param, other}) each.mutable_grad() = normal(each.sizes(), 3);
    const std::string message = message_of([&] { optimizer.step(); });
    EXPECT_EQ(message,
              "torchdion: the all_reduce over the axis 'fs' of 2 ranks failed: connection lost (in batch 1 of 2, 1 "
              "matrix of 12×20 under Dion)");
    EXPECT_EQ(message_of([&] { optimizer.state_dict(); }),
              "torchdion::Dion: the last step failed after 0 of 2 batches; load a checkpoint");
  });
}

}  // namespace

}  // namespace torchdion
