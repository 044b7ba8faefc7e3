// What replicas have in common, and what a checkpoint must hold of what they have not.
#include <gtest/gtest.h>

#include <functional>

#include "optim/model_on_mesh.h"
#include "optim/warnings.h"

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

using Change = std::function<void(DionOptions&)>;

// A change is refused while momenta are each replica's own, and obeyed once the replicas have synchronized.
void expect_obeyed_once_synchronized(const DionOptions& options, const Change& change, const Change& take_back,
                                     const std::string& refusal) {
  const Model model;
  Comparison weights;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, options);
    training.step(0);
    training.step(1);
    auto& written = static_cast<DionOptions&>(training.optimizer.param_groups()[0].options());
    change(written);
    EXPECT_EQ(message_of([&] { training.step(2); }), refusal);
    EXPECT_EQ(message_of([&] { training.optimizer.synchronize_for_checkpoint(); }), refusal);
    take_back(written);
    training.optimizer.synchronize_for_checkpoint();
    change(written);
    training.step(2);
    weights.bring(axes, 0, training.local.weight);
  });
  EXPECT_TRUE(weights.are_equal());
}

TEST(DionReplicas, HaveMomentaOfTheirOwnThatNoOtherAlgorithmTakesForCommon) {
  expect_obeyed_once_synchronized(
      DionOptions(0.1).algorithm("muon"), [](DionOptions& options) { options.algorithm("lion"); },
      [](DionOptions& options) { options.algorithm("muon"); },
      "torchdion::Dion: the algorithm of parameter 0 (parameter group 0) must stay \"muon\" while its momentum is each "
      "replica's own, got \"lion\"; call synchronize_for_checkpoint() on every rank before it changes");
}

TEST(DionReplicas, WithMomentaOfTheirOwnGoOnAveragingFactors) {
  expect_obeyed_once_synchronized(
      DionOptions(kCompressed).nesterov(true), [](DionOptions& options) { options.factorization(Factorization::svd); },
      [](DionOptions& options) { options.factorization(Factorization::power_iteration); },
      "torchdion::Dion: the factorization of parameter 0 (parameter group 0) must stay "
      "Factorization::power_iteration while its momentum is each replica's own, got Factorization::svd; call "
      "synchronize_for_checkpoint() on every rank before it changes");
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

TEST(DionReplicas, StartBesideWhatAProgramKeepsInAStateBeforeTheFirstStep) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed), expected(model, axes, 2, kCompressed);
    auto state = std::make_unique<ParamState>();
    state->tensor("z", at::ones({3}));
    training.optimizer.state()[training.local.weight.unsafeGetTensorImpl()] = std::move(state);
    training.optimizer.check_replicas();
    training.optimizer.synchronize_replicas();
    training.optimizer.resize_rank();
    for (ModelOnMesh* each : {&training, &expected}) each->step(0);
    expect_bitwise_equal(training.local.params(), expected.local.params());
  });
}

TEST(DionReplicas, OfAResidualGetNoRankAtWhichTheyWouldHaveTheirOwnMomenta) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    const DionOptions options = DionOptions(0.1).rank_fraction(0.75);
    ModelOnMesh training(model, axes, 2, options), expected(model, axes, 2, options);
    const auto set = [&](ModelOnMesh& of, double fraction) {
      for (OptimizerParamGroup& group : of.optimizer.param_groups()) {
        auto& own = static_cast<DionOptions&>(group.options());
        if (own.algorithm() == "dion") own.rank_fraction(fraction).residual(Residual::sign);
      }
    };
    for (ModelOnMesh* each : {&training, &expected}) {
      set(*each, 0.75);
      each->step(0);
    }
    set(training, 0.25);
    const std::string refusal = message_of([&] { training.optimizer.resize_rank(); });
    EXPECT_TRUE(
        refusal.starts_with("torchdion::Dion: residual(Residual::sign) needs the same momentum on all replicas"))
        << refusal;
    set(training, 0.75);
    for (ModelOnMesh* each : {&training, &expected}) each->step(1);
    expect_bitwise_equal(training.local.params(), expected.local.params());
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

std::string sentence_of_start(const std::string& title, const std::string& names) {
  return title + ": replicas must start alike, and differ in " + names +
         "; all get the first one's weights and states now, as synchronize_replicas() before the first backward pass "
         "gives them";
}

TEST(DionReplicas, ThatStartFromOtherWeightsSayWhichOnceAndTrainAsTheFirst) {
  for (const auto& shape : {comm::MeshShape{3, 1, 1}, comm::MeshShape{2, 2, 2}}) {
    const Model model;
    Mesh(shape).run([&](MeshAxes axes) {
      ModelOnMesh expected(model, axes, shape.dp, kCompressed), training(model, axes, shape.dp, kCompressed);
      training.local.bias.requires_grad_(false);
      expected.local.bias.requires_grad_(false);
      if (axes.rank == shape.size() - 1) {
        training.local.square.detach()[-1][-1] += 1e-15;
        training.local.bias.detach()[2] += 1;
      }
      Warnings warnings;
      for (int step = 0; step < 2; ++step) expected.step(step);
      EXPECT_TRUE(warnings.messages.empty());
      for (int step = 0; step < 2; ++step) training.step(step);
      const int places = shape.fs * shape.tp;  // of which each has a bias of its own, which nothing cuts
      const char* bias = axes.rank % places == places - 1 ? ", parameter 2 (parameter group 0)" : "";
      EXPECT_EQ(warnings.messages, std::vector<std::string>{sentence_of_start(
                                       "torchdion::Dion", c10::str("parameter 1 (parameter group 0)", bias))});
      expect_bitwise_equal(training.local.params(), expected.local.params());
      training.optimizer.check_replicas();
    });
  }
}

// A plan for other weights is made again.
TEST(DionReplicas, WhoseWeightsNoKernelFollowsStartAlikeToo) {
  Mesh({2, 1, 1}).run([](MeshAxes axes) {
    std::vector<at::Tensor> trained;
    for (const bool differs : {false, true}) {
      const at::Tensor weight = normal({12, 40}, 1).add(differs * axes.rank).slice(1, 0, 40, 2).requires_grad_();
      Dion optimizer(std::vector<at::Tensor>{weight}, kCompressed);
      optimizer.set_layout(weight, {.replicas = axes.dp});
      Warnings warnings;
      for (int step = 0; step < 2; ++step) {
        at::Tensor(weight).mutable_grad() = normal(weight.sizes(), 10 * step + axes.rank);
        optimizer.step();
      }
      EXPECT_EQ(warnings.messages.size(), differs ? 1u : 0u);
      trained.push_back(weight.detach());
    }
    EXPECT_TRUE(bitwise_equal(trained[0].contiguous(), trained[1].contiguous()));
  });
}

TEST(DionReplicas, ThatStartAlikeAreComparedOnceByNoMessageMore) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    Warnings warnings;
    for (int step = 0; step < 3; ++step) {
      if (step == 2 && axes.rank == 1) training.local.bias.detach()[0] += 1;  // too late to be a start
      const int64_t calls = axes.dp.traffic().agreement.calls;
      training.step(step);
      EXPECT_EQ(axes.dp.traffic().agreement.calls, calls + 1);
    }
    EXPECT_TRUE(warnings.messages.empty());
  });
}

TEST(DionReplicas, ThatLoadOtherStatesOrGetOtherGroupsSaySo) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.step(0);
    training.optimizer.synchronize_for_checkpoint();
    const c10::IValue saved = training.optimizer.state_dict();
    training.optimizer.load_state_dict(saved);
    Warnings warnings;
    training.step(1);
    EXPECT_TRUE(warnings.messages.empty());
    training.optimizer.synchronize_for_checkpoint();
    if (axes.rank == 1) training.optimizer.state_of(training.local.weight).Q()[0][0] += 1;
    training.optimizer.load_state_dict(training.optimizer.state_dict());
    training.step(2);
    EXPECT_EQ(warnings.messages,
              std::vector<std::string>{sentence_of_start("torchdion::Dion", "parameter 0 (parameter group 0)")});
    training.optimizer.check_replicas();

    const at::Tensor more = at::full({6, 4}, 1.0 + axes.rank).requires_grad_();
    training.optimizer.add_param_group(OptimizerParamGroup({more}));
    training.optimizer.set_layout(more, {.replicas = axes.dp});
    warnings.messages.clear();
    training.step(3);
    EXPECT_EQ(warnings.messages,
              std::vector<std::string>{sentence_of_start("torchdion::Dion", "parameter 0 (parameter group 3)")});
    training.optimizer.check_replicas();
  });
}

TEST(DionReplicas, ThatAreMadeEqualBeforeTheFirstStepHaveNothingToSay) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    if (axes.rank == 1) training.local.weight.detach().add_(1);
    training.optimizer.synchronize_replicas();
    Warnings warnings;
    training.step(0);
    EXPECT_TRUE(warnings.messages.empty());
    training.optimizer.check_replicas();
  });
}

// Owners write what all have, but for what has no gradient.
TEST(DistMuonReplicas, StartAlikeWhoeverAveragesGradients) {
  for (const bool averages : {true, false}) {
    Mesh({2, 1, 1}).run([averages](MeshAxes axes) {
      const at::Tensor weight = at::full({6, 4}, 1.0 + axes.rank).requires_grad_();
      const at::Tensor frozen = at::full({3}, 1.0 + axes.rank);
      DistMuon optimizer(std::vector<at::Tensor>{weight, frozen});
      Layout layout;
      (averages ? layout.replicas : layout.copies) = axes.dp;
      for (const at::Tensor& param : {weight, frozen}) optimizer.set_layout(param, layout);
      at::Tensor(weight).mutable_grad() = at::ones({6, 4});
      Warnings warnings;
      optimizer.step();
      EXPECT_EQ(warnings.messages,
                std::vector<std::string>{sentence_of_start(
                    "torchdion::DistMuon", "parameter 0 (parameter group 0), parameter 1 (parameter group 0)")});
      EXPECT_EQ(frozen[0].item<double>(), 1);
      optimizer.check_replicas(axes.dp);
    });
  }
}

// Copies that only share work became equal by other means, which the optimizer does not know.
TEST(DionReplicas, ThatOthersAverageAreNotCompared) {
  Mesh({2, 1, 1}).run([](MeshAxes axes) {
    const at::Tensor weight = at::full({6, 4}, 1.0 + axes.rank).requires_grad_();
    Muon optimizer(std::vector<at::Tensor>{weight});
    optimizer.set_layout(weight, {.copies = axes.dp});
    at::Tensor(weight).mutable_grad() = at::ones({6, 4});
    Warnings warnings;
    optimizer.step();
    EXPECT_TRUE(warnings.messages.empty());
  });
}

}  // namespace

}  // namespace torchdion
