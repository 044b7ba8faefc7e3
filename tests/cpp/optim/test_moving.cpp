// Optimizers that are moved, moved from and moved into.
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <map>

#include "optim/model.h"

namespace torchdion {

namespace {

template <class Class>
class MovedOptimizer : public testing::Test {
 protected:
  // Every method that is no function of torch::optim::Optimizer alone.
  static std::map<std::string, std::function<void(Class&)>> methods(const Model& model) {
    return {
        {"step", [](Class& moved) { moved.step(); }},
        {"step of a closure",
         [](Class& moved) {
           moved.step([]() -> at::Tensor {
             ADD_FAILURE() << "called";
             return {};
           });
         }},
        {"zero_grad", [](Class& moved) { moved.zero_grad(); }},
        {"defaults", [](Class& moved) { moved.defaults(); }},
        {"const defaults", [](Class& moved) { std::as_const(moved).defaults(); }},
        {"parameters", [](Class& moved) { moved.parameters(); }},
        {"const parameters", [](Class& moved) { std::as_const(moved).parameters(); }},
        {"add_parameters", [&](Class& moved) { moved.add_parameters({model.weight}); }},
        {"add_param_group", [&](Class& moved) { moved.add_param_group(OptimizerParamGroup({model.square})); }},
        {"set_layout", [&](Class& moved) { moved.set_layout(model.weight, {}); }},
        {"state_of", [&](Class& moved) { moved.state_of(model.weight); }},
        {"stats", [](Class& moved) { moved.stats(); }},
        {"synchronize_for_checkpoint", [](Class& moved) { moved.synchronize_for_checkpoint(); }},
        {"check_replicas", [](Class& moved) { moved.check_replicas(); }},
        {"synchronize_replicas", [](Class& moved) { moved.synchronize_replicas(); }},
        {"state_dict", [](Class& moved) { moved.state_dict(); }},
        {"whole_state_dict", [](Class& moved) { moved.whole_state_dict(); }},
        {"load_state_dict", [](Class& moved) { moved.load_state_dict(c10::IValue()); }},
        {"resize_rank", [](Class& moved) { moved.resize_rank(); }},
        {"save",
         [](Class& moved) {
           torch::serialize::OutputArchive archive;
           moved.save(archive);
         }},
        {"load",
         [](Class& moved) {
           torch::serialize::InputArchive archive;
           moved.load(archive);
         }},
    };
  }

  static void take_step(Class& optimizer, const Model& model, int number) {
    model.give_gradients(number);
    optimizer.step();
  }

  // Every method throws, and the sentence is its own.
  static void expect_moved_from(Class& moved, const Model& model) {
    for (const auto& [name, call] : methods(model)) {
      EXPECT_EQ(message_of([&] { call(moved); }),
                std::string(Class::title) +
                    ": an optimizer that was moved from has no parameters; use the one that it was moved to")
          << name;
    }
    EXPECT_TRUE(moved.param_groups().empty());
    EXPECT_TRUE(moved.state().empty());
    EXPECT_EQ(moved.size(), 0u);
  }
};

using AllOptimizers =
    testing::Types<Dion, Muon, DistMuon, NorMuon, Dion2, Dion3, DoubleDion, DeMo, Lion, AdamW, DistAdamW>;
TYPED_TEST_SUITE(MovedOptimizer, AllOptimizers);

TYPED_TEST(MovedOptimizer, SaysSoInEveryMethodAndLosesNothing) {
  const Model model, other = model.clone();
  const auto make = [](const Model& of) { return TypeParam(std::vector<at::Tensor>{of.weight, of.square, of.bias}); };
  TypeParam expected = make(other), optimizer = make(model);
  this->take_step(expected, other, 0);
  this->take_step(optimizer, model, 0);
  TypeParam moved(std::move(optimizer));
  this->expect_moved_from(optimizer, model);
  this->take_step(expected, other, 1);
  this->take_step(moved, model, 1);
  EXPECT_EQ(moved.stats().steps, 2);
  expect_bitwise_equal(model.params(), other.params());

  optimizer = std::move(moved);  // which is usable again
  this->expect_moved_from(moved, model);
  this->take_step(expected, other, 2);
  this->take_step(optimizer, model, 2);
  expect_bitwise_equal(model.params(), other.params());
}

TYPED_TEST(MovedOptimizer, ThatIsMovedIntoAnotherTakesItsPlace) {
  const Model model, other = model.clone();
  const Model unused;
  TypeParam expected(std::vector<at::Tensor>{other.weight}), optimizer(std::vector<at::Tensor>{model.weight}),
      target(std::vector<at::Tensor>{unused.square});
  for (auto* each : {&optimizer, &expected}) this->take_step(*each, each == &expected ? other : model, 0);
  this->take_step(target, unused, 0);
  const std::size_t uses = unused.square.use_count();
  target = std::move(optimizer);
  EXPECT_LT(unused.square.use_count(), uses) << "neither has it any longer";
  this->expect_moved_from(optimizer, model);
  for (auto* each : {&target, &expected}) this->take_step(*each, each == &expected ? other : model, 1);
  expect_bitwise_equal(model.params(), other.params());
  target = TypeParam(std::vector<at::Tensor>{model.bias});
  EXPECT_EQ(target.stats().steps, 0);
}

TYPED_TEST(MovedOptimizer, MovedToItselfIsWhatItWas) {
  const Model model, other = model.clone();
  TypeParam expected(std::vector<at::Tensor>{other.weight}), optimizer(std::vector<at::Tensor>{model.weight});
  this->take_step(optimizer, model, 0);
  this->take_step(expected, other, 0);
  TypeParam& itself = optimizer;
  optimizer = std::move(itself);
  this->take_step(optimizer, model, 1);
  this->take_step(expected, other, 1);
  EXPECT_EQ(optimizer.stats().steps, 2);
  expect_bitwise_equal(model.params(), other.params());
}

TYPED_TEST(MovedOptimizer, SwapsWithAnother) {
  const Model model, other;
  TypeParam optimizer(std::vector<at::Tensor>{model.weight}), second(std::vector<at::Tensor>{other.square});
  this->take_step(optimizer, model, 0);
  std::swap(optimizer, second);
  EXPECT_EQ(optimizer.stats().steps, 0);
  EXPECT_EQ(second.stats().steps, 1);
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(other.square));
}

TEST(OptimizerOfTorch, ThatWasMovedFromHasNoGroups) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight});
  const Dion moved(std::move(optimizer));
  model.give_gradients(0);
  torch::optim::Optimizer& of_torch = optimizer;
  of_torch.zero_grad();  // not virtual, and of no parameters
  EXPECT_TRUE(model.weight.grad().defined());
  EXPECT_NE(message_of([&] { of_torch.step(); }), "");
  torch::serialize::OutputArchive archive;
  EXPECT_NE(message_of([&] { of_torch.save(archive); }), "");
}

}  // namespace

}  // namespace torchdion
