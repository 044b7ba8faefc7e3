// Ranks that disagree, miss gradients or lose each other.
#include <gtest/gtest.h>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

TEST(DionAgreement, OnOptionsIsAskedForAtTheFirstStepAndWhenTheyMayHaveChanged) {
  const Model model;
  Mesh({1, 2, 1}).run([&](MeshAxes axes) {
    const std::string sentence =
        "torchdion::Dion: the ranks of the axis 'fs' must agree on the options of parameter 0 "
        "(parameter group 0), got ";
    ModelOnMesh training(model, axes, 1, DionOptions(axes.rank == 0 ? 0.1 : 0.2));
    const at::Tensor before = training.local.weight.detach().clone();
    EXPECT_EQ(message_of([&] { training.step(0); }).substr(0, sentence.size()), sentence);
    EXPECT_TRUE(bitwise_equal(training.local.weight.detach(), before));

    ModelOnMesh agreed(model, axes, 1, kCompressed);
    agreed.step(0);
    const int64_t calls = axes.fs.traffic().agreement.calls;
    agreed.step(1);
    EXPECT_EQ(axes.fs.traffic().agreement.calls - calls, 1) << "flags alone";
    if (axes.rank == 0) agreed.optimizer.load_state_dict(agreed.optimizer.state_dict());
    agreed.step(2);
    const c10::IValue other = ModelOnMesh(model, {}, 1, kCompressed).optimizer.state_dict();
    if (axes.rank == 0) agreed.optimizer.load_state_dict(other);  // steps taken: none
    EXPECT_NE(message_of([&] { agreed.step(3); }).find("must agree on the steps taken of parameter 0"),
              std::string::npos);
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

TEST(DionFault, NamesAxisAndBatchAndLeavesTheOptimizerBroken) {
  comm::Meeting meeting(2);
  meeting.fails_at = 6;
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
