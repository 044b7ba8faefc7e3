// State dicts of torch.optim.Muon, torch.optim.AdamW and the dion package, which continue here.
#include <ATen/core/Dict.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <tuple>

#include "comm/mesh_as_threads.h"
#include "optim/model.h"

namespace torchdion {

namespace {

using Dict = c10::impl::GenericDict;

constexpr double kMu = 0.8;

Dict dict_of(const std::vector<std::pair<c10::IValue, c10::IValue>>& items) {
  Dict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : items) dict.insert(key, value);
  return dict;
}

c10::IValue list_of(const c10::IValue& value) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(value);
  return list;
}

Dict first_group_of(const c10::IValue& state_dict) {
  return state_dict.toGenericDict().at("param_groups").toListRef().front().toGenericDict();
}

// What torch.save() writes of a torch.optim.Muon of one matrix, but for an option of its group.
c10::IValue saved(const at::Tensor& buffer, const char* key = "maximize", const c10::IValue& value = false) {
  Dict group = dict_of({{"lr", 0.05},
                        {"weight_decay", 0.2},
                        {"momentum", kMu},
                        {"nesterov", true},
                        {"ns_coefficients", std::make_tuple(3.4445, -4.775, 2.0315)},
                        {"eps", 1e-7},
                        {"ns_steps", 5},
                        {"adjust_lr_fn", "match_rms_adamw"},
                        {"params", list_of(0)}});
  group.insert_or_assign(key, value);
  return dict_of({{"state", dict_of({{0, dict_of({{"momentum_buffer", buffer}})}})}, {"param_groups", list_of(group)}});
}

TEST(TorchMuon, StateContinuesHere) {
  at::Tensor X = normal({12, 7}, 1, at::kFloat).requires_grad_(true);
  const at::Tensor buffer = normal({12, 7}, 2, at::kFloat), G = normal({12, 7}, 3, at::kFloat);
  Muon optimizer({X});
  optimizer.load_state_dict(saved(buffer));
  const auto& options = static_cast<const MuonOptions&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.05);
  EXPECT_EQ(options.mu(), kMu);
  EXPECT_EQ(options.weight_decay(), 0.2);
  EXPECT_EQ(options.newton_schulz(), NewtonSchulz::jordan);
  EXPECT_EQ(options.adjust_lr(), AdjustLr::rms_norm);
  const ParamState& state = optimizer.state_of(X);
  EXPECT_TRUE(at::allclose(state.momentum(), buffer / (1 - kMu), 1e-6, 0));
  X.mutable_grad() = G;
  optimizer.step();
  EXPECT_TRUE(at::allclose(state.momentum(), kMu / (1 - kMu) * buffer + G, 1e-5, 1e-6));
  EXPECT_EQ(state.step().item<double>(), 1);
}

TEST(TorchMuon, BufferIsScaledInNoHalf) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const at::Tensor buffer = at::full({12, 7}, 4000, dtype);  // times 5 that of FP16 is 20000
    for (const double mu : {0.8, 0.95}) {
      const at::Tensor X = at::zeros({12, 7}, dtype).requires_grad_(true);
      Muon wide({X}, MuonOptions().momentum_dtype(at::kFloat)), own({X});
      wide.load_state_dict(saved(buffer, "momentum", mu));
      own.load_state_dict(saved(buffer, "momentum", mu));
      const at::Tensor momentum = buffer.to(at::kFloat) / (1 - mu);
      EXPECT_TRUE(at::equal(wide.state_of(X).momentum(), momentum)) << dtype;
      EXPECT_TRUE(
          at::equal(own.state_of(X).momentum(), (dtype == at::kHalf ? momentum.clamp_max(65504) : momentum).to(dtype)));
    }
  }
}

TEST(TorchMuon, GroupIsOneOfMuonInAnyOptimizer) {
  const at::Tensor X = normal({12, 7}, 1, at::kFloat).requires_grad_(true), buffer = normal({12, 7}, 2, at::kFloat);
  Dion optimizer({X}, DionOptions().algorithm("muon"));
  optimizer.load_state_dict(saved(buffer));
  EXPECT_EQ(optimizer.state_of(X).tensors().count("Q"), 0u);
  EXPECT_EQ(static_cast<const Options&>(optimizer.param_groups()[0].options()).algorithm(), "muon");
}

TEST(TorchMuon, BufferCountsAndNoMomentumBesideIt) {
  const at::Tensor X = normal({12, 7}, 1, at::kFloat).requires_grad_(true), buffer = normal({12, 7}, 2, at::kFloat);
  for (const bool beside : {false, true}) {
    const c10::IValue state_dict = saved(buffer);
    Dict states = state_dict.toGenericDict().at("state").toGenericDict();
    states.insert_or_assign(0, beside ? dict_of({{"momentum_buffer", buffer}, {"momentum", at::zeros_like(buffer)}})
                                      : dict_of({{"momentum", buffer}, {"step", 3.0}}));
    Muon optimizer({X});
    optimizer.load_state_dict(state_dict);
    EXPECT_TRUE(at::equal(optimizer.state_of(X).momentum(), beside ? buffer / (1 - kMu) : buffer));
  }
}

TEST(TorchMuon, BufferOfAnyStridesIsTaken) {
  const at::Tensor buffer = normal({7, 12}, 2, at::kBFloat16).t();
  const at::Tensor X = normal({12, 7}, 1, at::kFloat).requires_grad_(true);
  Muon optimizer({X});
  optimizer.load_state_dict(saved(buffer));
  EXPECT_TRUE(at::equal(optimizer.state_of(X).momentum(), buffer.to(at::kFloat) / (1 - kMu)));
}

TEST(TorchMuon, StateThatCannotContinueIsRefusedAndNothingIsLoaded) {
  const at::Tensor X = normal({12, 7}, 1, at::kFloat).requires_grad_(true);
  const at::Tensor buffer = normal({12, 7}, 2, at::kFloat);
  const std::vector<std::tuple<const char*, c10::IValue, std::string>> refused{
      {"ns_coefficients", std::make_tuple(2., -1.5, 0.5),
       "ns_coefficients must be (3.4445, -4.775, 2.0315), those of newton_schulz='jordan', got (2.0, -1.5, 0.5)"},
      {"ns_coefficients",
       {},
       "ns_coefficients must be (3.4445, -4.775, 2.0315), those of newton_schulz='jordan', got None"},
      {"adjust_lr_fn", "spectral", "adjust_lr_fn must be None, 'original' or 'match_rms_adamw', got 'spectral'"},
      {"adjust_lr_fn", 2, "adjust_lr_fn must be None, 'original' or 'match_rms_adamw', got 2"},
      {"momentum", 1., "momentum must be in [0, 1), got 1.0"},
      {"momentum", {}, "momentum must be in [0, 1), got None"},
      {"ns_steps", 0, "ns_steps must be an integer in [1, 99], got 0"},
  };
  for (const auto& [key, value, sentence] : refused) {
    Muon optimizer({X});
    EXPECT_EQ(message_of([&, key = key, value = value] { optimizer.load_state_dict(saved(buffer, key, value)); }),
              "torchdion::Muon: " + sentence + " (parameter group 0 of the state dict)");
    EXPECT_TRUE(optimizer.state().empty());
  }
  Muon optimizer({X});
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved(at::Tensor())); }),
            "torchdion::Muon: the state momentum of parameter 0 (parameter group 0) must be a dense "
            "floating-point tensor, got an undefined one");
  const at::Tensor terabytes = at::zeros({1, 1}).expand({int64_t{1} << 21, int64_t{1} << 21});
  EXPECT_NE(message_of([&] { optimizer.load_state_dict(saved(terabytes)); }).find("[2097152, 2097152]"),
            std::string::npos);
}

// What torch.save() writes of a torch.optim.AdamW of one parameter, but for an option of its group.
c10::IValue saved_by_adamw(const at::Tensor& mean, const at::Tensor& square, const char* key = "maximize",
                           const c10::IValue& value = false) {
  Dict group = dict_of({{"lr", 0.05},
                        {"betas", std::make_tuple(0.8, 0.9)},
                        {"eps", 1e-3},
                        {"weight_decay", 0.2},
                        {"amsgrad", false},
                        {"foreach", c10::IValue()},
                        {"fused", c10::IValue()},
                        {"decoupled_weight_decay", true},
                        {"params", list_of(0)}});
  group.insert_or_assign(key, value);
  const Dict state = dict_of({{"step", at::full({}, 3.0)}, {"exp_avg", mean}, {"exp_avg_sq", square}});
  return dict_of({{"state", dict_of({{0, state}})}, {"param_groups", list_of(group)}});
}

TEST(TorchAdamW, StateContinuesHere) {
  const at::Tensor before = normal({12, 7}, 1), mean = normal({12, 7}, 2), square = normal({12, 7}, 3).square();
  const at::Tensor G = normal({12, 7}, 4);
  const at::Tensor new_mean = 0.8 * mean + 0.2 * G, new_square = 0.9 * square + 0.1 * G * G;
  const double first = 1 - std::pow(0.8, 4), second = 1 - std::pow(0.9, 4);
  const at::Tensor update = new_mean / first / ((new_square / second).sqrt() + 1e-3);
  const at::Tensor expected = before * (1 - 0.05 * 0.2) - 0.05 * update;
  for (const bool as_group : {false, true}) {
    at::Tensor X = before.clone().requires_grad_(true);
    const std::unique_ptr<Optimizer> optimizer =
        as_group ? std::unique_ptr<Optimizer>(new Dion({X}, DionOptions().algorithm("adamw")))
                 : std::make_unique<AdamW>(std::vector{X});
    optimizer->load_state_dict(saved_by_adamw(mean, square));
    X.mutable_grad() = G;
    optimizer->step();
    EXPECT_LE(travel_error(X.detach(), expected, before), 1e-12);
    EXPECT_EQ(optimizer->state_of(X).step().item<double>(), 4);
  }
}

TEST(TorchAdamW, StateOfWhatItDoesNotUpdateHereOrCannotContinueIsRefused) {
  const at::Tensor X = normal({12, 7}, 1).requires_grad_(true), mean = normal({12, 7}, 2);
  Dion dion({X});
  EXPECT_NE(message_of([&] { dion.load_state_dict(saved_by_adamw(mean, mean)); }).find("another optimizer"),
            std::string::npos);
  AdamW optimizer({X});
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved_by_adamw(mean, mean, "amsgrad", true)); }),
            "torchdion::AdamW: amsgrad must be False, got True (parameter group 0 of the state dict)");
  EXPECT_EQ(
      message_of([&] { optimizer.load_state_dict(saved_by_adamw(mean, mean, "decoupled_weight_decay", false)); }),
      "torchdion::AdamW: weight_decay must be decoupled, as of torch.optim.AdamW, or 0, got 0.2 (parameter group 0 of "
      "the state dict)");
  EXPECT_TRUE(optimizer.state().empty());
}

// What the dion package saves of a NorDion2 of one matrix, but for an option of its group.
c10::IValue saved_by_dion_package(const at::Tensor& M, const at::Tensor& v, const char* key = "flatten",
                                  const c10::IValue& value = false) {
  Dict group = dict_of({{"lr", 0.05},
                        {"algorithm", "nordion2"},
                        {"mu", 0.5},
                        {"muon_beta2", 0.9},
                        {"fraction", 0.5},
                        {"beta1", 0.7},
                        {"beta2", 0.8},
                        {"weight_decay", 0.2},
                        {"adjust_lr", "rms_norm"},
                        {"step", 3},
                        {"params", list_of(0)}});
  group.insert_or_assign(key, value);
  return dict_of({{"state", dict_of({{0, dict_of({{"momentum", M}, {"variance_neuron", v}})}})},
                  {"param_groups", list_of(group)}});
}

TEST(DionPackage, StateAndOptionsContinueHere) {
  const at::Tensor X = normal({12, 7}, 1).requires_grad_(true), M = normal({12, 7}, 2), v = normal({12, 1}, 3).square();
  Dion3 optimizer({X});
  optimizer.load_state_dict(saved_by_dion_package(M, v));
  const auto& options = static_cast<const Options&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(options.algorithm(), "dion3");
  EXPECT_EQ(options.ef_decay(), 0.5);
  EXPECT_EQ(options.mu(), 0.95);
  EXPECT_EQ(options.betas(), std::make_tuple(0.7, 0.8));
  EXPECT_EQ(options.adjust_lr(), AdjustLr::rms_norm);
  EXPECT_EQ(optimizer.state_of(X).step().item<double>(), 3);
  EXPECT_TRUE(at::equal(optimizer.state_of(X).momentum(), M));
  EXPECT_TRUE(at::equal(optimizer.state_of(X).tensor("variance_neuron"), v));
}

TEST(DionPackage, StacksAreWhatItSaysUnlessTheOwnGroupSaysSomethingElse) {
  const at::Tensor X = normal({3, 12, 7}, 1).requires_grad_(true), M = normal({3, 12, 7}, 2), v = at::ones({3, 12, 1});
  Dion3 optimizer({X});
  optimizer.load_state_dict(saved_by_dion_package(M, v));
  EXPECT_EQ(static_cast<const Options&>(optimizer.param_groups()[0].options()).batch_dims(), 1);
  Dion3 other({X}, static_cast<const MuonOptions&>(MuonOptions().batch_dims(0)));
  EXPECT_NE(message_of([&] {
              other.load_state_dict(saved_by_dion_package(M, v));
            }).find("flatten=False means batch_dims=1, got batch_dims=0 too"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              other.load_state_dict(saved_by_dion_package(M, v, "flatten", true));
            }).find("flatten must be False where dion3 has updated"),
            std::string::npos);
}

TEST(DionPackage, FusedMatricesAreBlocksIfTheyAreAlike) {
  const at::Tensor X = normal({12, 7}, 1).requires_grad_(true), M = normal({12, 7}, 2), v = normal({12, 1}, 3).square();
  const auto blocks_of = [&](const char* key, const c10::IValue& value) {
    Dion3 optimizer({X});
    optimizer.load_state_dict(saved_by_dion_package(M, v, key, value));
    return static_cast<const Options&>(optimizer.param_groups()[0].options()).blocks();
  };
  EXPECT_EQ(blocks_of("num_heads", 3), 3);
  EXPECT_EQ(blocks_of("split_sizes", std::make_tuple(6, 6)), 2);
  EXPECT_NE(message_of([&] { blocks_of("split_sizes", std::make_tuple(4, 8)); }).find("≥ 1 that are alike"),
            std::string::npos);
  EXPECT_NE(message_of([&] { blocks_of("split_sizes", std::make_tuple(4, 4)); }).find("must sum to the rows"),
            std::string::npos);
  const auto beside = [&](int64_t heads) {
    Dion3 optimizer({X});
    c10::IValue saved = saved_by_dion_package(M, v, "split_sizes", std::make_tuple(6, 6));
    first_group_of(saved).insert_or_assign("num_heads", heads);
    optimizer.load_state_dict(saved);
    return static_cast<const Options&>(optimizer.param_groups()[0].options()).blocks();
  };
  EXPECT_EQ(beside(1), 2);  // one head says nothing there
  EXPECT_NE(message_of([&] { beside(3); }).find("split_sizes=(6, 6) means blocks=2, got blocks=3 too"),
            std::string::npos);
}

TEST(DionPackage, WhatItCountsInGroupsIsCountedInStates) {
  const at::Tensor X = normal({12, 7}, 1).requires_grad_(true), M = normal({12, 7}, 2), v = at::ones({12, 1});
  Dion3 optimizer({X});
  optimizer.load_state_dict(saved_by_dion_package(M, v));
  c10::IValue saved = optimizer.state_dict();
  for (const char* theirs : {"step", "flatten", "selection_scope"}) {
    EXPECT_FALSE(first_group_of(saved).contains(theirs)) << theirs;
  }
}

TEST(DionPackage, SplitSizesAreThoseOfWholeParameters) {
  const at::Tensor M = normal({6, 7}, 2), v = at::ones({6, 1});
  comm::Mesh({1, 2, 1}).run([&](comm::MeshAxes axes) {
    const at::Tensor X = normal({6, 7}, 1).requires_grad_(true);
    Dion3 optimizer({X});
    optimizer.set_layout(X, {.rows = axes.fs, .sizes = {12, 7}});
    const auto said = [&](int64_t size) {
      return message_of(
          [&] { optimizer.load_state_dict(saved_by_dion_package(M, v, "split_sizes", std::make_tuple(size, size))); });
    };
    EXPECT_NE(said(3).find("must sum to the rows of each matrix, got (3, 3) for the shape (12, 7)"), std::string::npos);
    EXPECT_NE(said(6).find("has blocks=2 along its rows, which may not be cut"), std::string::npos);
  });
}

}  // namespace

}  // namespace torchdion
