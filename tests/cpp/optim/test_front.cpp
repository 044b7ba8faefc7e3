#include "optim/front.h"

#include <gtest/gtest.h>

#include "linalg/backend.h"
#include "optim/model.h"

namespace torchdion {

namespace {

std::vector<at::Tensor> drawn;

// A device without memory, in the place of one that this machine lacks.
TEST(StepInputs, HaveAQThatIsDrawnOnTheDeviceOfItsParameter) {
  linalg::Backend backend = linalg::backend_of(at::kCPU);
  backend.sketch_ = [](const at::Tensor& out, linalg::RandomMatrix, int64_t, int64_t, double) { drawn.push_back(out); };
  drawn.clear();
  const linalg::Backend* before = linalg::exchange_backend(at::kMeta, &backend);
  const at::Tensor X = at::zeros({3, 8, 10}, at::TensorOptions(at::kFloat).device(at::kMeta));
  X.mutable_grad() = at::zeros_like(X);
  Dion optimizer({X}, DionOptions().batch_dims(1).rank_fraction(0.5).Q_dtype(at::kBFloat16));
  EXPECT_THROW(optimizer.step(), c10::ValueError) << "no step is possible without memory";
  linalg::exchange_backend(at::kMeta, before);
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_TRUE(drawn[0].is_meta());
  EXPECT_EQ(drawn[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(drawn[0].sizes(), (std::vector<int64_t>{3, 8, 4}));
}

ParamState& kept_state(Dion& optimizer, const at::Tensor& param) {
  return static_cast<ParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

TEST(StepInputs, AreMadeBesideWhatAProgramKeepsInAStateBeforeTheFirstStep) {
  const Model model, other = model.clone();
  Dion optimizer(model.groups()), reference(other.groups());
  const at::Tensor z = at::ones({3});
  for (const at::Tensor& param : model.params()) {
    auto state = std::make_unique<ParamState>();
    state->tensor("z", z);
    optimizer.state()[param.unsafeGetTensorImpl()] = std::move(state);
  }
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(optimizer.state_dict()); }), "");  // of no step
  EXPECT_TRUE(optimizer.state().empty());
  auto state = std::make_unique<ParamState>();
  state->tensor("z", z);
  optimizer.state()[model.weight.unsafeGetTensorImpl()] = std::move(state);
  take_steps(optimizer, model, 0, 2);
  take_steps(reference, other, 0, 2);
  expect_bitwise_equal(model.params(), other.params());
  EXPECT_TRUE(optimizer.state_of(model.weight).tensor("z").is_same(z));
  const auto saved = optimizer.whole_state_dict().toGenericDict().at("state").toGenericDict().at(0).toGenericDict();
  EXPECT_TRUE(saved.contains("z"));
}

TEST(StepInputs, CountStepsInTheDtypeToWhichALoaderHasConvertedThem) {
  const Model model, other = model.clone();
  Dion optimizer(model.groups()), reference(other.groups());
  take_steps(optimizer, model, 0, 2);
  take_steps(reference, other, 0, 2);
  const at::Tensor count = kept_state(optimizer, model.weight).step();
  kept_state(optimizer, model.weight).tensor("step", count.to(at::kLong));  // as a loader of others has it
  take_steps(optimizer, model, 2, 2);
  take_steps(reference, other, 2, 2);
  expect_bitwise_equal(model.params(), other.params());
  EXPECT_EQ(optimizer.state_of(model.weight).step().item<double>(), 4);
  EXPECT_TRUE(optimizer.state_of(model.weight).step().is_cpu());
}

TEST(StepInputs, DoNotTakeADamagedStateForOneOfNoStep) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  kept_state(optimizer, model.weight).tensor("momentum", at::Tensor());
  EXPECT_NE(message_of([&] { optimizer.step(); }).find("lacks the tensor 'momentum'"), std::string::npos);
}

// FP64 stands for a count that a program has moved: it is another one than a graph would count.
TEST(StepInputs, HaveCountsWhereAndAsStepsCountThem) {
  for (const bool capturable : {false, true}) {
    const Model model, other = model.clone();
    const DionOptions options = DionOptions(0.1).capturable(capturable);
    Dion optimizer(model.groups(options), options), reference(other.groups(options), options);
    take_steps(optimizer, model, 0, 2);
    take_steps(reference, other, 0, 2);
    for (const at::Tensor& param : model.params()) {
      ParamState& state = kept_state(optimizer, param);
      state.tensor("step", state.step().to(at::kDouble).view({1}));
    }
    take_steps(optimizer, model, 2, 2);
    take_steps(reference, other, 2, 2);
    expect_bitwise_equal(model.params(), other.params());
    const at::Tensor& step = optimizer.state_of(model.vector).step();
    EXPECT_EQ(step.item<double>(), 4);
    EXPECT_EQ(step.scalar_type(), capturable ? at::kFloat : at::kDouble);
  }
}

}  // namespace

}  // namespace torchdion
