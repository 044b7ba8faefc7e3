// Parameters that no step can compute with, or that are frozen: left alone until they have a gradient.
#include <gtest/gtest.h>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

struct Frozen {
  std::string name;
  at::Tensor param;
  std::string sentence;  // where it has a gradient
};

std::vector<Frozen> all_frozen(double fill = 1) {
  const at::Tensor ones = at::full({6, 4}, fill, at::kFloat);
  return {{"bytes", ones.to(at::kByte), "must be real floating-point, got Byte"},
          {"integers", ones.to(at::kLong), "must be real floating-point, got Long"},
          {"FP8", ones.to(at::kFloat8_e5m2), "must be real floating-point, got Float8_e5m2"},
          {"complex", ones.to(at::kComplexFloat), "must be real floating-point, got ComplexFloat"},
          {"sparse", ones.to_sparse(), "must be dense, got Sparse"},
          {"meta", ones.to(at::kMeta), "is on meta, which this build has no kernels for"}};
}

std::vector<at::Tensor> with(const at::Tensor& X, const std::vector<Frozen>& frozen) {
  std::vector<at::Tensor> params{X};
  for (const Frozen& one : frozen) params.push_back(one.param);
  return params;
}

TEST(FrozenParameters, AreLeftAloneByStepsStateDictsAndChangesOfRank) {
  for (const int64_t blocks : {1, 4}) {  // which 6 rows do not have
    const at::Tensor X = Model::leaf({8, 4}, 1), other = X.detach().clone().requires_grad_();
    const DionOptions options = DionOptions(0.1).blocks(blocks);
    Dion optimizer(with(X, all_frozen()), options), reference({other}, options);
    for (int step = 0; step < 2; ++step) {
      X.mutable_grad() = other.mutable_grad() = normal({8, 4}, step + 2);
      optimizer.step();
      reference.step();
    }
    expect_bitwise_equal({X}, {other});
    EXPECT_EQ(optimizer.state().size(), 1u);
    optimizer.resize_rank();
    optimizer.load_state_dict(optimizer.whole_state_dict());
    EXPECT_EQ(optimizer.state().size(), 1u);
  }
}

TEST(FrozenParameters, AreRefusedBeforeAnyWriteOnceTheyHaveAGradient) {
  for (const Frozen& frozen : all_frozen()) {
    const at::Tensor X = Model::leaf({8, 4}, 1), before = X.detach().clone();
    Dion optimizer({X, frozen.param});
    X.mutable_grad() = normal({8, 4}, 2);
    frozen.param.mutable_grad() = frozen.param.clone();
    EXPECT_EQ(message_of([&] { optimizer.step(); }),
              "torchdion::Dion: parameter 1 (parameter group 0) " + frozen.sentence);
    expect_bitwise_equal({X}, {before});
    EXPECT_TRUE(optimizer.state().empty());
    frozen.param.mutable_grad() = at::Tensor();
    EXPECT_EQ(message_of([&] { optimizer.step(); }), "");
  }
}

TEST(FrozenParameters, TakeNoStateOfACheckpoint) {
  const at::Tensor X = Model::leaf({6, 4}, 1);
  Dion optimizer({X}), other({X.detach().to(at::kLong)});
  X.mutable_grad() = normal({6, 4}, 2);
  optimizer.step();
  EXPECT_EQ(message_of([&] { other.load_state_dict(optimizer.state_dict()); }),
            "torchdion::Dion: parameter 0 (parameter group 0) must be real floating-point, got torch.int64");
}

TEST(FrozenParameters, OfReplicasAreComparedAndMadeEqualInTheirBytes) {
  comm::Mesh({2, 1, 1}).run([&](comm::MeshAxes axes) {
    const at::Tensor X = Model::leaf({8, 4}, 1);
    const std::vector<Frozen> frozen = all_frozen(1 + axes.rank);
    Dion optimizer(with(X, frozen));
    EXPECT_EQ(message_of([&] { optimizer.check_replicas(axes.dp); }),
              "torchdion::Dion: replicas differ in parameter 1 (parameter group 0), parameter 2 (parameter group 0), "
              "parameter 3 (parameter group 0), parameter 4 (parameter group 0); synchronize_replicas() makes them "
              "equal");
    optimizer.synchronize_replicas(axes.dp);
    EXPECT_EQ(message_of([&] { optimizer.check_replicas(axes.dp); }), "");
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(frozen[i].param.to(at::kComplexFloat).eq(1).all().item<bool>());
  });
}

TEST(BatchDims, ThatAParameterDoesNotHaveAreRefusedWhereItHasOrAsksForAGradient) {
  const std::string sentence =
      "torchdion::Dion: batch_dims must be at most the number of dimensions of parameter 0 (parameter group 0) of "
      "shape "
      "[4], got 2";
  at::Tensor vector = at::zeros({4});
  Dion optimizer({vector}, DionOptions().batch_dims(2));
  vector.mutable_grad() = at::ones({4});
  EXPECT_EQ(message_of([&] { optimizer.step(); }), sentence);
  EXPECT_EQ(message_of([&] { Dion({Model::leaf({4}, 1)}, DionOptions().batch_dims(2)); }), sentence);
  EXPECT_EQ(message_of([&] { Dion({Model::leaf({4, 3}, 1)}, DionOptions().batch_dims(2)); }), "");
  EXPECT_EQ(message_of([&] { Dion({Model::leaf({4}, 1)}, DionOptions().batch_dims(2).algorithm("lion")); }), "");
}

}  // namespace

}  // namespace torchdion
