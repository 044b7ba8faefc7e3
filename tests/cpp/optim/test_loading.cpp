// load_state_dict() of values that no optimizer has made.
#include <ATen/core/Dict.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include "optim/model.h"

namespace torchdion {

namespace {

using Dict = c10::impl::GenericDict;

Dict state_of(const c10::IValue& saved, int64_t index) {
  return saved.toGenericDict().at("state").toGenericDict().at(index).toGenericDict();
}

// A copy whose containers hold anything.
c10::IValue loosened(const c10::IValue& value) {
  if (value.isGenericDict()) {
    Dict dict(c10::AnyType::get(), c10::AnyType::get());
    for (const auto& item : value.toGenericDict()) dict.insert(item.key(), loosened(item.value()));
    return dict;
  }
  if (!value.isList()) return value.isTensor() ? value.toTensor().clone() : value;
  c10::impl::GenericList list(c10::AnyType::get());
  for (const c10::IValue& part : value.toListRef()) list.push_back(loosened(part));
  return list;
}

// Everything of an optimizer that a half-done load could change.
std::vector<at::Tensor> tensors_of(const Dion& optimizer, const Model& model) {
  std::vector<at::Tensor> all = model.params();
  for (const at::Tensor& param : model.params()) {
    const ParamState& state = optimizer.state_of(param);
    for (const at::Tensor& tensor : {state.momentum(), state.Q(), state.variance(), state.step()}) {
      if (tensor.defined()) all.push_back(tensor);
    }
  }
  return all;
}

struct TensorCase {
  std::string name;
  at::Tensor tensor;
};

class ExoticState : public testing::TestWithParam<TensorCase> {};

TEST_P(ExoticState, OfTheLastParameterIsRefusedAndLeavesTheOptimizerAsItWas) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 2);
  const std::vector<at::Tensor> all = tensors_of(optimizer, model), before = Model::snapshot(all);
  for (const char* key : {"momentum", "variance", "step"}) {
    const c10::IValue saved = loosened(optimizer.state_dict());
    state_of(saved, 0).at("momentum").toTensor().add_(1);
    state_of(saved, 4).insert_or_assign(key, GetParam().tensor);
    const std::string message = message_of([&] { optimizer.load_state_dict(saved); });
    EXPECT_EQ(message.find("torchdion::Dion: the "), 0u) << key << ": " << message;
    EXPECT_NE(message.find("of parameter 0 (parameter group 2)"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    const std::vector<at::Tensor> now = tensors_of(optimizer, model);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(now[i].is_same(all[i]));
    expect_bitwise_equal(now, before);
  }
}

at::Tensor freed() {
  at::Tensor tensor = at::zeros({5}, at::kDouble);
  tensor.storage().unsafeGetStorageImpl()->set_nbytes(0);
  return tensor;
}

INSTANTIATE_TEST_SUITE_P(
    Kind, ExoticState,
    testing::Values(TensorCase{"Sparse", at::zeros({5}, at::kDouble).to_sparse()},
                    TensorCase{"Meta", at::empty({5}, at::TensorOptions(at::kDouble).device(at::kMeta))},
                    TensorCase{"Quantized", at::quantize_per_tensor(at::zeros({5}), 0.1, 0, at::kQInt8)},
                    TensorCase{"Complex", at::zeros({5}, at::kComplexDouble)}, TensorCase{"Undefined", at::Tensor()},
                    TensorCase{"Freed", freed()},
                    TensorCase{"Terabytes", at::zeros({1}, at::kDouble).expand({int64_t{1} << 42})},
                    TensorCase{"SparseNumber", at::zeros({1}, at::kDouble).to_sparse()},
                    TensorCase{"MetaNumber", at::empty({}, at::TensorOptions(at::kDouble).device(at::kMeta))},
                    TensorCase{"QuantizedNumber", at::quantize_per_tensor(at::zeros({1}), 0.1, 0, at::kQInt8)}),
    [](const auto& info) { return info.param.name; });

TEST(LoadStateDict, OfContainersThatHoldThemselvesIsRefused) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  const std::string refused = "torchdion::Dion: the state dict holds itself or is nested more than 100 deep";
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  for (const char* key : {"betas", "lr", "notes"}) {
    const c10::IValue saved = loosened(optimizer.state_dict());
    saved.toGenericDict().at("param_groups").toListRef()[0].toGenericDict().insert_or_assign(key, list);
    EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved); }), refused);
  }
  list.clear();
  const c10::IValue saved = loosened(optimizer.state_dict());
  saved.toGenericDict().insert_or_assign("state", saved);
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved); }), refused);
  saved.toGenericDict().clear();
}

TEST(LoadStateDict, SaysNoMoreOfALongEntryThanItsKind) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  const c10::IValue saved = loosened(optimizer.state_dict());
  const Dict group = saved.toGenericDict().at("param_groups").toListRef()[0].toGenericDict();
  group.insert_or_assign("lr", c10::List<int64_t>(std::vector<int64_t>(1000, 1)));
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved); }),
            "torchdion::Dion: lr must be a finite number ≥ 0 (a Tensor lr must be 1-element), got a value of type list "
            "(parameter group 0 of the state dict)");
}

TEST(LoadStateDict, OfOneParameterTwiceOrOfOddKeysIsRefused) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  const auto refusal_of = [&](const auto& damage) {
    const c10::IValue saved = loosened(optimizer.state_dict());
    damage(saved.toGenericDict());
    return message_of([&] { optimizer.load_state_dict(saved); });
  };
  const auto params = [](int64_t group, const c10::IValue& key) {
    return [=](const Dict& saved) {
      saved.at("param_groups").toListRef()[group].toGenericDict().at("params").toList().set(0, key);
    };
  };
  EXPECT_EQ(
      refusal_of(params(1, 0)),
      "torchdion::Dion: 'params' must be distinct numbers or names, got 0 again (parameter group 1 of the state dict)");
  EXPECT_EQ(
      refusal_of(params(0, true)),
      "torchdion::Dion: 'params' must be distinct numbers or names, got True (parameter group 0 of the state dict)");
  EXPECT_EQ(refusal_of([](const Dict& saved) {
              saved.at("state").toGenericDict().insert(0.5, Dict(c10::AnyType::get(), c10::AnyType::get()));
            }),
            "torchdion::Dion: the keys of 'state' must be numbers or names, got 0.5");
  EXPECT_EQ(refusal_of([](const Dict& saved) { saved.at("state").toGenericDict().insert_or_assign(0, c10::IValue()); }),
            "torchdion::Dion: the state of parameter 0 (parameter group 0) must be a dict, got NoneType");
}

TEST(LoadStateDict, OfATensorForARateNeedsOneWithANumber) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  for (const at::Tensor& lr : {at::Tensor(), at::zeros({1}).to_sparse(), at::empty({}, at::TensorOptions(at::kMeta)),
                               at::zeros({2}), at::zeros({1}, at::kComplexFloat)}) {
    const c10::IValue saved = loosened(optimizer.state_dict());
    saved.toGenericDict().at("param_groups").toListRef()[1].toGenericDict().insert_or_assign("lr", lr);
    EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved); }),
              "torchdion::Dion: lr must be a finite number ≥ 0 (a Tensor lr must be 1-element), got a value of type "
              "Tensor (parameter group 1 of the state dict)");
  }
}

}  // namespace

}  // namespace torchdion
