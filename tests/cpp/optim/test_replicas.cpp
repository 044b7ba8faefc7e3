// What replicas have in common, and what a checkpoint must hold of what they have not.
#include <gtest/gtest.h>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

constexpr const char* kDecoupled =
    "torchdion::Dion: the momenta are each replica's own; call synchronize_for_checkpoint() on every rank before "
    "state_dict()";

// The same tensor of the ranks of one place on the mesh, in the order of their replicas.
class Comparison {
 public:
  void bring(const MeshAxes& axes, int place, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto [first, is_first] = tensors_.emplace(place, tensor.detach().clone());
    if (!is_first) are_equal_ = are_equal_ && bitwise_equal(first->second, tensor.detach());
    count_ += axes.dp.size;
  }
  bool are_equal() const { return are_equal_ && count_ > 0; }

 private:
  std::mutex mutex_;
  std::map<int, at::Tensor> tensors_;
  bool are_equal_ = true;
  int count_ = 0;
};

TEST(DionReplicas, HaveTheirOwnMomentaOfCompressedMatricesUntilTheySynchronize) {
  const Model model;
  Comparison before, after, dense, weights;
  Mesh({2, 2, 2}).run([&](MeshAxes axes) {
    const int place = axes.rank % 4;
    ModelOnMesh training(model, axes, 2, kCompressed);
    for (int step = 0; step < 3; ++step) training.step(step);
    const auto momentum = [&](const at::Tensor& param) { return training.optimizer.state_of(param).momentum(); };
    before.bring(axes, place, momentum(training.local.weight));
    dense.bring(axes, place, momentum(training.local.square));
    weights.bring(axes, place, training.local.weight);
    EXPECT_EQ(message_of([&] { training.optimizer.state_dict(); }), kDecoupled);
    torch::serialize::OutputArchive archive;
    EXPECT_EQ(message_of([&] { training.optimizer.save(archive); }), kDecoupled);
    training.optimizer.synchronize_for_checkpoint();
    after.bring(axes, place, momentum(training.local.weight));
    EXPECT_EQ(message_of([&] { training.optimizer.state_dict(); }), "");
    training.step(3);
    EXPECT_EQ(message_of([&] { training.optimizer.state_dict(); }), kDecoupled);
  });
  EXPECT_FALSE(before.are_equal());
  EXPECT_TRUE(after.are_equal());
  EXPECT_TRUE(dense.are_equal());  // (5 + 5) 3 elements of P and R are more than 5 · 5
  EXPECT_TRUE(weights.are_equal());
}

TEST(DionReplicas, OfWhichOneAloneHasLoadedAreToldSoWhereTheySynchronize) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    training.optimizer.synchronize_for_checkpoint();
    const c10::IValue saved = training.optimizer.state_dict();
    training.step(1);
    if (axes.rank == 0) training.optimizer.load_state_dict(saved);
    EXPECT_NE(message_of([&] { training.optimizer.synchronize_for_checkpoint(); }).find("must agree on the "),
              std::string::npos);
  });
}

TEST(DionReplicas, HaveMomentaOfTheirOwnThatNoOtherAlgorithmTakesForCommon) {
  const Model model;
  Comparison weights;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, DionOptions(0.1).algorithm("muon"));
    training.step(0);
    training.step(1);
    auto& options = static_cast<DionOptions&>(training.optimizer.param_groups()[0].options());
    options.algorithm("lion");
    const std::string said =
        "torchdion::Dion: the algorithm of parameter 0 (parameter group 0) must stay \"muon\" while its momentum is "
        "each replica's own, got \"lion\"; call synchronize_for_checkpoint() on every rank before it changes";
    EXPECT_EQ(message_of([&] { training.step(2); }), said);
    EXPECT_EQ(message_of([&] { training.optimizer.synchronize_for_checkpoint(); }), said);
    options.algorithm("muon");
    training.optimizer.synchronize_for_checkpoint();
    options.algorithm("lion");
    training.step(2);
    weights.bring(axes, 0, training.local.weight);
  });
  EXPECT_TRUE(weights.are_equal());
}

TEST(DionReplicas, WithMomentaOfTheirOwnGoOnAveragingFactors) {
  const Model model;
  Comparison weights;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    DionOptions compressed = kCompressed;
    ModelOnMesh training(model, axes, 2, compressed.nesterov(true));
    training.step(0);
    auto& options = static_cast<DionOptions&>(training.optimizer.param_groups()[0].options());
    options.factorization(Factorization::svd);
    const std::string said =
        "torchdion::Dion: the factorization of parameter 0 (parameter group 0) must stay "
        "Factorization::power_iteration while its momentum is each replica's own, got Factorization::svd; call "
        "synchronize_for_checkpoint() on every rank before it changes";
    EXPECT_EQ(message_of([&] { training.step(1); }), said);
    options.factorization(Factorization::power_iteration);
    training.optimizer.synchronize_for_checkpoint();
    options.factorization(Factorization::svd);
    training.step(1);
    weights.bring(axes, 0, training.local.weight);
  });
  EXPECT_TRUE(weights.are_equal());
}

TEST(DionReplicas, OfZeroMomentaMayBeSaved) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.optimizer.step();  // gradients are missing, and count as zero
    EXPECT_EQ(message_of([&] { training.optimizer.state_dict(); }), "");
  });
}

TEST(DionReplicas, ThatDifferAreNamedOnEveryRankAndMadeEqual) {
  const Model model;
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    training.optimizer.check_replicas();
    const at::Tensor own = training.optimizer.state_of(training.local.weight).momentum().clone();
    if (axes.dp.rank == 1) {
      training.local.bias.detach()[0] += 1;
      training.optimizer.state_of(training.local.weight).Q()[0][0] += 1;
    }
    EXPECT_EQ(message_of([&] { training.optimizer.check_replicas(); }),
              "torchdion::Dion: replicas differ in parameter 0 (parameter group 0), parameter 2 (parameter group 0); "
              "synchronize_replicas() makes them equal");
    training.optimizer.synchronize_replicas();
    training.optimizer.check_replicas();
    EXPECT_TRUE(bitwise_equal(training.optimizer.state_of(training.local.weight).momentum(), own));
  });
}

TEST(DionReplicas, ThatOthersAverageAreComparedOverAnAxisThatIsGiven) {
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    const Model model;
    Dion optimizer(model.groups());
    take_steps(optimizer, model, 0, 2);
    optimizer.check_replicas(axes.dp);
    if (axes.dp.rank == 0) model.square.detach().zero_();
    optimizer.check_replicas();  // of no layout: nothing to compare with
    EXPECT_EQ(message_of([&] { optimizer.check_replicas(axes.dp); }),
              "torchdion::Dion: replicas differ in parameter 1 (parameter group 0); synchronize_replicas() makes them "
              "equal");
    optimizer.synchronize_replicas(axes.dp);
    EXPECT_EQ(model.square.detach().abs().max().item<double>(), 0);
    static_cast<DionOptions&>(optimizer.param_groups()[0].options()).mu(axes.dp.rank == 0 ? 0.9 : 0.5);
    EXPECT_NE(message_of([&] { optimizer.check_replicas(axes.dp); }).find("must agree on the mu of parameter group 0"),
              std::string::npos);
  });
}

}  // namespace

}  // namespace torchdion
