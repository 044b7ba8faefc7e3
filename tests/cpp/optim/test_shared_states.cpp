// Optimizers whose states have owners, on ranks as threads.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "comm/mesh_as_threads.h"
#include "optim/model.h"
#include "sentences.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

constexpr int kStepsBefore = 3, kStepsInAll = 6, kGradients = 12;  // gradients, of which each rank averages some itself

// How a parameter lies on its ranks.
enum class SharedBy { alone, replicas, copies };

struct SharedCase {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerParamGroup>)> make;
  Options options;
};

std::vector<OptimizerParamGroup> shared_groups(const Model& model, const Options& options) {
  Options stack = options, adamw = options;
  stack.batch_dims(1);
  adamw.algorithm("adamw").lr_multiplier(0.5);
  std::vector<OptimizerParamGroup> all;
  all.emplace_back(std::vector<at::Tensor>{model.weight, model.square, model.bias}, std::make_unique<Options>(options));
  all.emplace_back(std::vector<at::Tensor>{model.experts}, std::make_unique<Options>(stack));
  all.emplace_back(std::vector<at::Tensor>{model.vector}, std::make_unique<Options>(adamw));
  return all;
}

template <class Class>
SharedCase shared_case(const std::string& name, const Options& options) {
  return {name, [](std::vector<OptimizerParamGroup> groups) { return std::make_unique<Class>(groups); }, options};
}

const SharedCase& shared_case_named(const std::string& name) {
  static const std::vector<SharedCase> cases{
      shared_case<DistMuon>("DistMuon", MuonOptions(0.02).precision(Precision::highest)),
      shared_case<DistAdamW>("DistAdamW", AdamWOptions(0.01)),
      shared_case<Lion>("Lion", LionOptions(0.001).owners(Owners::shard))};
  return *std::find_if(cases.begin(), cases.end(), [&](const SharedCase& each) { return each.name == name; });
}

// One rank's part of a training of the same model.
struct SharedTraining {
  Model model;
  Axis axis;
  SharedBy kind;
  std::unique_ptr<Optimizer> optimizer;

  SharedTraining(const SharedCase& of, const Model& start, const Axis& axis, SharedBy kind = SharedBy::replicas)
      : model(start.clone()), axis(axis), kind(kind), optimizer(of.make(shared_groups(model, of.options))) {
    for (const at::Tensor& param : model.params()) {
      Layout layout;
      (kind == SharedBy::copies ? layout.copies : layout.replicas) = axis;
      if (!axis.absent()) optimizer->set_layout(param, layout);
    }
  }

  void steps(int first, int end) {
    for (int step = first; step < end; ++step) {
      const std::vector<at::Tensor> params = model.params();
      for (std::size_t i = 0; i < params.size(); ++i) {
        at::Tensor mean = at::zeros_like(params[i]).detach();
        int count = 0;
        for (int replica = 0; replica < kGradients; ++replica) {
          if (kind == SharedBy::replicas && replica % axis.size != axis.rank) continue;
          mean.add_(normal(params[i].sizes(), 1000 * step + 20 * replica + i));
          ++count;
        }
        at::Tensor(params[i]).mutable_grad() = mean.div_(count);
      }
      optimizer->step();
    }
  }

  int64_t numel_of(const char* state) const {
    int64_t numel = 0;
    for (const at::Tensor& param : model.params()) numel += optimizer->state_of(param).tensor(state).numel();
    return numel;
  }
};

void expect_same_travel(const SharedTraining& training, const SharedTraining& expected, const Model& start) {
  const std::vector<at::Tensor> params = training.model.params(), others = expected.model.params();
  for (std::size_t i = 0; i < params.size(); ++i) {
    EXPECT_LE(travel_error(params[i].detach(), others[i].detach(), start.params()[i].detach()), 1e-10) << i;
  }
}

class SharedStates : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const SharedCase& of = shared_case_named(std::get<0>(GetParam()));
  const int ranks = std::get<1>(GetParam());
  const Model start;
};

TEST_P(SharedStates, TakeTheStepsOfOneProcessAndSendWhatTheFormulaSays) {
  SharedTraining expected(of, start, {});
  expected.steps(0, kStepsInAll);
  for (const SharedBy kind : {SharedBy::replicas, SharedBy::copies}) {
    Mesh mesh({ranks, 1, 1});
    std::vector<int64_t> owned(ranks);
    std::vector<std::vector<at::Tensor>> weights(ranks);
    mesh.run([&](MeshAxes axes) {
      SharedTraining training(of, start, axes.dp, kind);
      training.steps(0, kStepsInAll);
      expect_same_travel(training, expected, start);
      owned[axes.rank] = training.numel_of("momentum");
      weights[axes.rank] = Model::snapshot(training.model.params());
      const Stats stats = training.optimizer->stats();
      const AxisTraffic traffic = stats.traffic.at(axes.dp.name());
      int64_t numel = 0;
      for (const at::Tensor& param : start.params()) numel += param.numel();
      EXPECT_EQ(stats.expected_traffic.at(axes.dp.name()), numel);
      EXPECT_EQ(traffic.elements(), kStepsInAll * numel);
      EXPECT_EQ(traffic.reduce_scatter.elements, kind == SharedBy::replicas ? traffic.elements() : 0);
      EXPECT_EQ(traffic.bytes(), mesh.sent_bytes(axes.rank, 0));
      training.optimizer->check_replicas(axes.dp);
    });
    EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), int64_t{0}), expected.numel_of("momentum"))
        << "each entry has one owner";
    for (int rank = 1; rank < ranks; ++rank) expect_bitwise_equal(weights[rank], weights[0]);
  }
}

TEST_P(SharedStates, GoOnOnOtherNumbersOfRanks) {
  SharedTraining expected(of, start, {});
  expected.steps(0, kStepsInAll);
  Model between = start.clone();
  c10::IValue state;
  Mesh({ranks, 1, 1}).run([&](MeshAxes axes) {
    SharedTraining training(of, start, axes.dp);
    training.steps(0, kStepsBefore);
    const c10::IValue whole = training.optimizer->whole_state_dict();
    if (axes.rank == 0) std::tie(state, between) = std::pair(whole, training.model.clone());
    // What a rank owns loads there again.
    const c10::IValue own = training.optimizer->state_dict();
    training.optimizer->load_state_dict(own);
  });
  for (const int others : {1, 2, 6}) {
    Mesh({others, 1, 1}).run([&](MeshAxes axes) {
      SharedTraining training(of, between, axes.dp);
      training.optimizer->load_state_dict(state);
      training.steps(kStepsBefore, kStepsInAll);
      expect_same_travel(training, expected, start);
      EXPECT_LT(training.numel_of("momentum"), others == 1 ? 10000 : expected.numel_of("momentum"));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, SharedStates,
                         testing::Combine(testing::Values("DistMuon", "DistAdamW", "Lion"), testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(SharedStatesOfOddTensors, AreThoseOfOrdinaryOnes) {
  // Transposed, one number, no elements: under Nonfinite::zero, with an entry that is not finite.
  const auto leaf = [](const at::Tensor& tensor) { return tensor.requires_grad_(); };
  const auto params_of = [&] {
    return std::vector{leaf(normal({20, 12}, 1).t()), leaf(normal({}, 2)), leaf(normal({0, 3}, 3)),
                       leaf(normal({6, 1}, 4).expand({6, 1})), leaf(at::_neg_view(normal({4, 6}, 5).t()))};
  };
  const auto train = [](Optimizer& optimizer, const std::vector<at::Tensor>& params, int rank, int ranks) {
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < params.size(); ++i) {
        at::Tensor mean = at::zeros(params[i].sizes(), at::kDouble);
        for (int r = 0; r < 6; ++r) {
          at::Tensor gradient = normal(params[i].sizes(), 100 * step + 10 * r + i);
          if (r == 1 && i == 0) gradient[0][0] = 0;
          if (r % ranks == rank) mean.add_(gradient, 1. / (6 / ranks));
        }
        if (i == 0 && ranks > 1 && rank == 1) mean[2][3] = std::numeric_limits<double>::infinity();
        if (i == 0 && ranks == 1) {  // what that rank's zero leaves of the mean of three
          mean[2][3] = 0;
          for (int r = 0; r < 6; ++r) {
            if (r % 3 != 1) mean[2][3] += normal(params[i].sizes(), 100 * step + 10 * r)[2][3] / 6;
          }
        }
        at::Tensor(params[i]).mutable_grad() = mean;
      }
      optimizer.step();
    }
  };
  const Options options = AdamWOptions(0.01).nonfinite(Nonfinite::zero);
  const std::vector<at::Tensor> expected = params_of(), start = params_of();
  DistAdamW one(expected, options);
  train(one, expected, 0, 1);
  Mesh({3, 1, 1}).run([&](MeshAxes axes) {
    const std::vector<at::Tensor> params = params_of();
    DistAdamW optimizer(params, options);
    for (const at::Tensor& param : params) optimizer.set_layout(param, {.replicas = axes.dp});
    train(optimizer, params, axes.rank, 3);
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(at::allclose(params[i].resolve_neg(), expected[i].resolve_neg(), 1e-12, 1e-14)) << i;
      EXPECT_EQ(params[i].strides(), start[i].strides());
    }
    EXPECT_EQ(optimizer.stats().nonfinite_entries, axes.rank == 1 ? 3 : 0) << "each counts its own, once";
  });
}

TEST(SharedStatesOfOneRank, AreRefusedOnAnother) {
  Mesh({2, 1, 1}).run([](MeshAxes axes) {
    SharedTraining training(shared_case_named("DistMuon"), Model(), axes.dp);
    training.steps(0, 1);
    const at::Tensor momentum = training.optimizer->state_of(training.model.weight).momentum();
    EXPECT_EQ(momentum.sizes(), (at::IntArrayRef{axes.rank == 0 ? 12 : 0, 20}));
    c10::impl::GenericDict saved = training.optimizer->state_dict().toGenericDict();
    auto states =
        c10::impl::toTypedDict<int64_t, c10::Dict<std::string, at::Tensor>>(saved.at("state").toGenericDict().copy());
    c10::Dict<std::string, at::Tensor> first = states.at(0).copy();
    first.insert_or_assign("momentum", normal({3, 20}, 1));
    states.insert_or_assign(0, first);
    c10::impl::GenericDict other = saved.copy();
    other.insert_or_assign("state", states);
    const std::string own = axes.rank == 0 ? "[12, 20]" : "[0, 20]";
    EXPECT_EQ(message_of([&] { training.optimizer->load_state_dict(other); }),
              "torchdion::DistMuon: the state momentum of parameter 0 (parameter group 0) must be whole, of shape "
              "[12, 20], or what this rank owns, of shape " +
                  own + ", got [3, 20]");
  });
}

TEST(SharedStatesOfOneRank, AreRefusedOnAnotherThatOwnsAsMuch) {
  std::vector<c10::IValue> saved(2);
  Mesh mesh({2, 1, 1});
  mesh.run([&](MeshAxes axes) {
    SharedTraining training(shared_case_named("DistAdamW"), Model(), axes.dp);
    training.steps(0, 1);
    saved[axes.rank] = training.optimizer->state_dict();
  });
  mesh.run([&](MeshAxes axes) {
    SharedTraining training(shared_case_named("DistAdamW"), Model(), axes.dp);
    training.optimizer->load_state_dict(saved[axes.rank]);
    const int other = 1 - axes.rank;
    EXPECT_EQ(message_of([&] { training.optimizer->load_state_dict(saved[other]); }),
              c10::str("torchdion::DistAdamW: the states must be whole or those of rank ", axes.rank,
                       " of 2, got what is owned by rank ", other,
                       " of 2; whole_state_dict() has those of all (parameter group 0 of the state dict)"));
    const c10::impl::GenericDict groups = training.optimizer->whole_state_dict().toGenericDict();
    EXPECT_FALSE(groups.at("param_groups").toListRef()[0].toGenericDict().contains("owned_by"));
  });
  const Model model;
  DistAdamW one(model.params());
  EXPECT_NE(message_of([&] { one.load_state_dict(saved[0]); }), "");
}

TEST(SharedStates, AreThoseOfGroupsThatAreAddedLater) {
  Mesh({2, 1, 1}).run([](MeshAxes axes) {
    const Model model;
    DistAdamW optimizer(std::vector<at::Tensor>{model.weight});
    OptimizerParamGroup later({model.square}, std::make_unique<AdamWOptions>(AdamWOptions(0.02)));
    optimizer.add_param_group(later);
    for (const at::Tensor& param : {model.weight, model.square}) {
      optimizer.set_layout(param, {.replicas = axes.dp});
      param.mutable_grad() = at::ones_like(param);
    }
    optimizer.step();
    EXPECT_LT(optimizer.state_of(model.square).momentum().numel(), model.square.numel());
  });
}

TEST(SharedStatesOfParameters, AreRefusedWhereTheyAreCutOrAlone) {
  Mesh({2, 2, 1}).run([](MeshAxes axes) {
    Model model;
    {
      DistAdamW optimizer(std::vector<at::Tensor>{model.weight, model.square});
      optimizer.set_layout(model.weight, {.replicas = axes.dp});
      model.give_gradients(1);
      EXPECT_EQ(
          message_of([&] { optimizer.step(); }),
          "torchdion::DistAdamW: the layout of parameter 1 (parameter group 0) must have replicas or copies under "
          "owners(Owners::shard) as those of other parameters have");
    }
    const at::Tensor piece = model.weight.detach().narrow(0, 0, 6).clone().requires_grad_();
    DistAdamW optimizer(std::vector<at::Tensor>{piece});
    EXPECT_EQ(message_of([&] {
                optimizer.set_layout(piece, {.rows = axes.fs, .replicas = axes.dp, .sizes = {12, 20}});
              }),
              "torchdion::DistAdamW: parameter 0 (parameter group 0) must be whole on every rank under "
              "owners(Owners::shard), got one that is cut; fully sharded parameters have sharded states without it");
  });
}

}  // namespace

}  // namespace torchdion
