#include "engine/loaded_state.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/step_groups.h"
#include "sentences.h"

namespace torchdion::engine {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

TEST(LoadedTensor, IsDenseFloatingPointAndHasMemory) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn}) {
    EXPECT_NO_THROW(check_loaded_tensor(at::empty({3}, dtype), "momentum", "parameter 0")) << dtype;
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
    EXPECT_EQ(sentence_of([&, tensor = tensor] { check_loaded_tensor(tensor, "momentum", "parameter 0"); }),
              begins + sentence);
  }
}

TEST(LoadedSizes, AreThoseOfTheParameterAndOfAFactorAnyRankAndSide) {
  const algorithms::Options options = algorithms::options_of(kOfDion, {{"batch_dims", 1}});
  const auto check = [&](const algorithms::State& state, std::vector<int64_t> loaded) {
    return sentence_of([&] { check_loaded_sizes(state, loaded, {3, 8, 10}, options, "parameter 0"); });
  };
  EXPECT_EQ(check(kMomentumOfDion, {3, 8, 10}), "");
  EXPECT_EQ(check(kMomentumOfDion, {3, 10, 8}),
            "torchdion: the state momentum of parameter 0 of shape [3, 8, 10] must have that shape, got [3, 10, 8]");
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 8, 1}, {3, 8, 8}, {3, 10, 2}}) {
    EXPECT_EQ(check(kQOfDion, sizes), "");
  }
  EXPECT_EQ(check(kQOfDion, {3, 8, 9}),
            "torchdion: the state Q of parameter 0 must have the shape [3, 8, r] or [3, 10, r] with 1 ≤ r ≤ 8, got [3, "
            "8, 9]");
  EXPECT_NE(check(kQOfDion, {3, 9, 2}), "");
  EXPECT_NE(check(kQOfDion, {2, 8, 2}), "");
  EXPECT_NE(check(kQOfDion, {8}), "");
  const algorithms::State rows{.name = "rows", .shape = algorithms::StateShape::rows};
  EXPECT_EQ(check(rows, {3, 8, 1}), "");
  EXPECT_EQ(check(rows, {3, 8}),
            "torchdion: the state rows of parameter 0 of shape [3, 8, 10] must have the shape [3, 8, 1], got [3, 8]");
}

TEST(LoadedStep, IsAWholeNumberThatFP32CountsTo) {
  for (const double count : {0.0, 1.0, 0x1p24}) EXPECT_NO_THROW(check_loaded_step(count, "", "parameter 0")) << count;
  for (const double count : {-1.0, 0.5, 0x1p24 + 1, kNaN, kInfinity}) {
    EXPECT_EQ(sentence_of([&] { check_loaded_step(count, "that", "parameter 0"); }),
              "torchdion: the state step of parameter 0 must be a whole number from 0 to 16777216, got that");
  }
}

TEST(StoredState, IsACopyThatIsFiniteWhereTheLoadedOneIs) {
  const at::Tensor loaded = at::tensor({1.0, -1e6, 1e300, kInfinity, -kInfinity, kNaN}, at::kDouble);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor stored = stored_as(loaded, dtype, at::kCPU);
    EXPECT_EQ(stored.scalar_type(), dtype);
    EXPECT_FALSE(stored.is_alias_of(loaded));
    EXPECT_TRUE(at::equal(stored.isfinite(), loaded.isfinite())) << dtype;
    EXPECT_TRUE(at::equal(stored.isnan(), loaded.isnan())) << dtype;
    EXPECT_EQ(stored[0].item<double>(), 1);
    EXPECT_GT(stored[3].item<double>(), 0);
    EXPECT_LT(stored[4].item<double>(), 0);
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {  // of which BF16 does not hold 65504
    const at::Tensor in_half = stored_as(loaded.to(dtype), at::kHalf, at::kCPU);
    EXPECT_EQ(in_half[1].item<double>(), -65504) << "the largest, as steps store it; of " << dtype;
  }
  EXPECT_TRUE(bitwise_equal(stored_as(loaded, at::kDouble, at::kCPU), loaded));
}

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
