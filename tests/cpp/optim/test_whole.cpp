// States that move between layouts, and Q of another rank.
#include <gtest/gtest.h>

#include "comm/blocking.h"
#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;
using comm::MeshShape;

constexpr int kBefore = 3, kAfter = 13;

// The weights of all ranks after kBefore steps on a mesh, put together, and the whole state dict.
struct Saved {
  Model weights;
  c10::IValue state;
};

at::Tensor gathered(const at::Tensor& piece, const Layout& layout, int64_t batch_dims) {
  at::Tensor whole = piece.detach();
  const auto gather = [&](const Axis& axis, int64_t dim) {
    if (!axis.absent()) whole = comm::gather_pieces(whole, dim, layout.sizes[dim], axis);
  };
  gather(layout.batch, 0);
  gather(layout.rows, batch_dims);
  gather(layout.cols, batch_dims + 1);
  return whole;
}

Saved saved_on(const MeshShape& shape, const Model& model) {
  Saved saved;
  Mesh(shape).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    for (int step = 0; step < kBefore; ++step) training.step(step);
    const c10::IValue state = training.optimizer.whole_state_dict();
    Model weights = model.clone();
    const std::vector<at::Tensor> whole = weights.params();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const at::Tensor gathered_weight = gathered(training.local.params()[i], training.layouts[i], kBatchDims[i]);
      at::Tensor(whole[i]).copy_(gathered_weight);
    }
    if (axes.rank == 0) saved = {weights, state};
  });
  return saved;
}

class WholeState : public testing::TestWithParam<std::tuple<MeshShape, MeshShape>> {};

TEST_P(WholeState, OfOneLayoutGoesOnInAnother) {
  const auto& [from, to] = GetParam();
  const Model model;
  ModelOnMesh expected(model, {}, 2, kCompressed);
  for (int step = 0; step < kAfter; ++step) expected.step(step);
  const Saved saved = saved_on(from, model);
  Mesh(to).run([&](MeshAxes axes) {
    ModelOnMesh training(saved.weights, axes, 2, kCompressed);
    training.optimizer.load_state_dict(saved.state);
    for (int step = kBefore; step < kAfter; ++step) training.step(step);
    for (std::size_t i = 0; i < training.layouts.size(); ++i) {
      const at::Tensor param = training.local.params()[i];
      if (param.numel() == 0) continue;
      const auto piece = [&](const at::Tensor& tensor) { return piece_of(tensor, training.layouts[i], kBatchDims[i]); };
      EXPECT_LE(travel_error(param.detach(), piece(expected.local.params()[i]), piece(model.params()[i])), 1e-10)
          << "parameter " << i;
      EXPECT_EQ(training.optimizer.state_of(param).step().item<double>(), kAfter);
    }
  });
}

constexpr MeshShape kShapes[] = {{1, 1, 1}, {2, 1, 1}, {1, 3, 2}, {2, 2, 2}};

INSTANTIATE_TEST_SUITE_P(Meshes, WholeState, testing::Combine(testing::ValuesIn(kShapes), testing::ValuesIn(kShapes)),
                         [](const auto& info) {
                           const MeshShape from = std::get<0>(info.param);
                           const MeshShape to = std::get<1>(info.param);
                           return c10::str(from.dp, from.fs, from.tp, "_to_", to.dp, to.fs, to.tp);
                         });

TEST(ResizeRank, GivesEveryLayoutTheQOfOneProcess) {
  const Model model;
  for (const double fraction : {0.1, 0.6}) {
    const auto resize = [&](Dion& optimizer) {
      for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
        static_cast<DionOptions&>(group.options()).rank_fraction(fraction);
      }
      optimizer.resize_rank();
    };
    ModelOnMesh expected(model, {}, 2, kCompressed);
    for (int step = 0; step < 2; ++step) expected.step(step);
    resize(expected.optimizer);
    EXPECT_EQ(expected.optimizer.state_of(expected.local.weight).Q().size(-1), fraction == 0.1 ? 2 : 8);
    expected.step(2);
    Mesh({2, 2, 2}).run([&](MeshAxes axes) {
      ModelOnMesh training(model, axes, 2, kCompressed);
      for (int step = 0; step < 2; ++step) training.step(step);
      resize(training.optimizer);
      training.step(2);
      for (std::size_t i = 0; i < training.layouts.size(); ++i) {
        const at::Tensor param = training.local.params()[i];
        if (param.numel() == 0) continue;
        const auto piece = [&](const at::Tensor& whole) { return piece_of(whole, training.layouts[i], kBatchDims[i]); };
        EXPECT_LE(travel_error(param.detach(), piece(expected.local.params()[i]), piece(model.params()[i])), 1e-10);
      }
    });
  }
}

TEST(ResizeRank, LeavesAQOfItsRankAlone) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 2);
  const at::Tensor Q = optimizer.state_of(model.weight).Q();
  optimizer.resize_rank();
  EXPECT_TRUE(optimizer.state_of(model.weight).Q().is_same(Q));
}

}  // namespace

}  // namespace torchdion
