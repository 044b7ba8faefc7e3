#include "engine/loaded_state.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/step_groups.h"
#include "sentences.h"

namespace torchdion::engine {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

class LoadedState : public testing::Test {
 protected:
  LoadedState() {
    view.name = "parameter 0";
    view.param = view.tensor = at::zeros({6, 4});
    view.algorithm = &algorithms::algorithm("lion");
  }

  ParameterState loaded() const { return engine::loaded(saved, view, options); }

  const algorithms::Options options = algorithms::options_of(algorithms::algorithm("lion"), {});
  const at::Tensor whole = normal({6, 4}, 1, at::kFloat);
  ParameterView view;
  SavedState saved{.tensors = {{"momentum", whole}}, .step = 3};
};

TEST_F(LoadedState, HasTensorsThatAreDenseFloatingPointAndHaveMemory) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn}) {
    saved.tensors = {{"momentum", whole.to(dtype)}};
    EXPECT_NO_THROW(loaded()) << dtype;
  }
  const std::string begins = "torchdion: the state momentum of parameter 0 must ";
  struct Case {
    at::Tensor tensor;
    const char* sentence;
  };
  for (const auto& [tensor, sentence] :
       {Case{{}, "be a dense floating-point tensor, got an undefined one"},
        Case{at::zeros({3}, at::kLong), "be a dense floating-point tensor, got Long, Strided"},
        Case{at::zeros({3}, at::kComplexFloat), "be a dense floating-point tensor, got ComplexFloat, Strided"},
        Case{at::eye(3).to_sparse(), "be a dense floating-point tensor, got Float, Sparse"},
        Case{at::empty({3}, at::kMeta), "have memory, got meta without any"}}) {
    saved.tensors = {{"momentum", tensor}};
    EXPECT_EQ(sentence_of([&] { loaded(); }), begins + sentence);
  }
}

// What is wrong with states of these sizes, by their names, of a stack of three 8×10 matrices.
std::string refusal_of(const char* algorithm, const std::vector<std::pair<const char*, std::vector<int64_t>>>& states) {
  ParameterView view;
  view.name = "parameter 0";
  view.param = view.tensor = at::zeros({3, 8, 10});
  view.algorithm = &algorithms::algorithm(algorithm);
  SavedState saved;
  for (const auto& [name, sizes] : states) saved.tensors.push_back({name, at::zeros(sizes)});
  return sentence_of([&] { loaded(saved, view, algorithms::options_of(*view.algorithm, {{"batch_dims", 1}})); });
}

TEST(LoadedSizes, AreThoseOfTheParameterAndOfAFactorAnyRankAndSide) {
  const auto of_momentum = [](std::vector<int64_t> sizes) {
    return refusal_of("dion", {{"momentum", std::move(sizes)}, {"Q", {3, 10, 2}}});
  };
  EXPECT_EQ(of_momentum({3, 8, 10}), "");
  EXPECT_EQ(of_momentum({3, 10, 8}),
            "torchdion: the state momentum of parameter 0 of shape [3, 8, 10] must have that shape, got [3, 10, 8]");
  const auto of_Q = [](std::vector<int64_t> sizes) {
    return refusal_of("dion", {{"momentum", {3, 8, 10}}, {"Q", std::move(sizes)}});
  };
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 8, 1}, {3, 8, 8}, {3, 10, 2}}) {
    EXPECT_EQ(of_Q(sizes), "");
  }
  EXPECT_EQ(of_Q({3, 8, 9}),
            "torchdion: the state Q of parameter 0 must have the shape [3, 8, r] or [3, 10, r] with 1 ≤ r ≤ 8, got [3, "
            "8, 9]");
  EXPECT_NE(of_Q({3, 9, 2}), "");
  EXPECT_NE(of_Q({2, 8, 2}), "");
  EXPECT_NE(of_Q({8}), "");
  const auto of_rows = [](std::vector<int64_t> sizes) {
    return refusal_of("normuon", {{"momentum", {3, 8, 10}}, {"variance_neuron", std::move(sizes)}});
  };
  EXPECT_EQ(of_rows({3, 8, 1}), "");
  EXPECT_EQ(
      of_rows({3, 8}),
      "torchdion: the state variance_neuron of parameter 0 of shape [3, 8, 10] must have the shape [3, 8, 1], got [3, "
      "8]");
}

TEST_F(LoadedState, HasTakenAWholeNumberOfStepsThatFP32CountsTo) {
  saved.shown_step = "that";
  for (const double count : {0.0, 1.0, 0x1p24}) {
    saved.step = count;
    EXPECT_NO_THROW(loaded()) << count;
  }
  for (const double count : {-1.0, 0.5, 0x1p24 + 1, kNaN, kInfinity}) {
    saved.step = count;
    EXPECT_EQ(sentence_of([&] { loaded(); }),
              "torchdion: the state step of parameter 0 must be a whole number from 0 to 16777216, got that");
  }
}

TEST_F(LoadedState, IsFiniteWhereTheSavedOneIs) {
  const auto stored_as = [this](const at::Tensor& tensor, at::ScalarType dtype) {
    view.param = view.tensor = at::zeros({6}, dtype);
    saved.tensors = {{"momentum", tensor}};
    return loaded().find("momentum")->tensor;
  };
  const at::Tensor given = at::tensor({1.0, -1e6, 1e300, kInfinity, -kInfinity, kNaN}, at::kDouble);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor stored = stored_as(given, dtype);
    EXPECT_EQ(stored.scalar_type(), dtype);
    EXPECT_FALSE(stored.is_alias_of(given));
    EXPECT_TRUE(at::equal(stored.isfinite(), given.isfinite())) << dtype;
    EXPECT_TRUE(at::equal(stored.isnan(), given.isnan())) << dtype;
    EXPECT_EQ(stored[0].item<double>(), 1);
    EXPECT_GT(stored[3].item<double>(), 0);
    EXPECT_LT(stored[4].item<double>(), 0);
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {  // of which BF16 does not hold 65504
    const at::Tensor in_half = stored_as(given.to(dtype), at::kHalf);
    EXPECT_EQ(in_half[1].item<double>(), -65504) << "the largest, as steps store it; of " << dtype;
  }
  EXPECT_TRUE(bitwise_equal(stored_as(given, at::kDouble), given));
}

TEST_F(LoadedState, IsACopyWithItsCount) {
  const ParameterState state = loaded();
  EXPECT_TRUE(bitwise_equal(state.find("momentum")->tensor, whole));
  EXPECT_FALSE(state.find("momentum")->tensor.is_alias_of(whole));
  EXPECT_EQ(state.step.item<double>(), 3);
  saved.tensors.clear();
  EXPECT_NE(sentence_of([&] { loaded(); }).find("lacks the tensor 'momentum'"), std::string::npos);
}

TEST_F(LoadedState, OfAnOwnerIsItsPartOfAWholeOneOrThatPart) {
  view.part = Part{{}, {2, 4}, {6, 4}};  // of the first of two ranks
  const at::Tensor own = whole.narrow(0, 0, 2);
  EXPECT_TRUE(bitwise_equal(loaded().find("momentum")->tensor, own));
  saved.tensors = {{"momentum", own, {{6, 4}}, 0}};
  EXPECT_TRUE(bitwise_equal(loaded().find("momentum")->tensor, own));
  EXPECT_EQ(loaded().find("momentum")->sizes, (std::vector<int64_t>{6, 4}));
  saved.tensors = {{"momentum", whole.narrow(0, 2, 2), {{6, 4}}, 2}};
  const std::string got =
                        ", got [2, 4) of [6, 4]; whole_state_dict() and torch.distributed.checkpoint move states to "
                        "other ranks",
                    begins = "torchdion: the state momentum of parameter 0 must be whole";
  EXPECT_EQ(sentence_of([&] { loaded(); }), begins + ", or what this rank owns, [0, 2) of dimension 0" + got);
  view.part.reset();
  EXPECT_EQ(sentence_of([&] { loaded(); }), begins + got);
}

TEST_F(LoadedState, IsDividedBeforeItIsRounded) {
  saved.tensors = {{"momentum", at::full({6, 4}, 40000, at::kHalf)}};
  saved.divisor = 0.5;
  EXPECT_EQ(loaded().find("momentum")->tensor.max().item<double>(), 80000);
}

}  // namespace

}  // namespace torchdion::engine
