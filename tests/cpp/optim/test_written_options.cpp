// An option that cannot change any more is one warning that says so, and nothing else changes.
#include <gtest/gtest.h>

#include <functional>

#include "optim/model.h"
#include "optim/warnings.h"

namespace torchdion {

namespace {

Options& first_options(Optimizer& optimizer) { return static_cast<Options&>(optimizer.param_groups()[0].options()); }

at::Tensor start(at::IntArrayRef sizes) { return normal(sizes, 7, at::kFloat).requires_grad_(); }

struct Written {
  const char* name;
  std::vector<int64_t> sizes;
  std::function<void(Options&)> write;
  const char* sentence;
};

class WrittenOptions : public testing::TestWithParam<Written> {};

TEST_P(WrittenOptions, AreOneWarningAndChangeNothing) {
  const at::Tensor X = start(GetParam().sizes), twin = X.detach().clone().requires_grad_();
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5)), reference({twin}, DionOptions(0.1).rank_fraction(0.5));
  for (const auto& [own, param] : {std::pair<Dion*, at::Tensor>(&optimizer, X), {&reference, twin}}) {
    param.mutable_grad() = normal(param.sizes(), 1).to(at::kFloat);
    own->step();
  }
  Warnings warnings;
  for (int step = 0; step < 3; ++step) {
    GetParam().write(first_options(optimizer));
    for (const auto& [own, param] : {std::pair<Dion*, at::Tensor>(&optimizer, X), {&reference, twin}}) {
      param.mutable_grad() = normal(param.sizes(), 2 + step).to(at::kFloat);
      own->step();
    }
  }
  EXPECT_EQ(warnings.messages, std::vector<std::string>{std::string("torchdion::Dion: ") + GetParam().sentence});
  EXPECT_TRUE(bitwise_equal(X.detach(), twin.detach()));
}

INSTANTIATE_TEST_SUITE_P(
    Each, WrittenOptions,
    testing::Values(
        Written{"Rank",
                {12, 20},
                [](Options& options) { options.rank_fraction(0.25); },
                "rank_fraction(0.25) (parameter group 0) is that of Q that are still to be made: those that there are "
                "keep their rank until resize_rank() is called"},
        Written{"Multiple",
                {12, 20},
                [](Options& options) { options.rank_multiple_of(8); },
                "rank_multiple_of(8) (parameter group 0) is that of Q that are still to be made: those that there are "
                "keep their rank until resize_rank() is called"},
        Written{"Dtype",
                {12, 20},
                [](Options& options) { options.momentum_dtype(at::kDouble); },
                "momentum_dtype(Double) (parameter group 0) is the dtype of states that are still to be made: those "
                "that there are keep theirs until a state dict is loaded"},
        Written{"OrientationOfASquare",
                {9, 9},
                [](Options& options) { options.orientation(Orientation::left); },
                "orientation(Orientation::left) (parameter group 0) is not taken: it stays Orientation::right, which Q "
                "was made for"},
        Written{"FanIn",
                {12, 20},
                [](Options& options) { options.fan_in_first(true); },
                "fan_in_first(true) (parameter group 0) is not taken: it stays false, which Q was made for"},
        Written{"Seed",
                {12, 20},
                [](Options& options) { options.seed(7); },
                "seed(7) (parameter group 0) is that of Q that are still to be made: those that there are keep their "
                "start"},
        Written{"Orientation",
                {12, 20},
                [](Options& options) { options.orientation(Orientation::left); },
                "orientation(Orientation::left) (parameter group 0) is not taken: it stays Orientation::right, which Q "
                "was made for"},
        Written{"OfOthers",
                {12, 20},
                [](Options& options) { options.ef_decay(0.5); },
                "the option 'ef_decay' (parameter group 0) is kept and ignored: it is an option of dion2, dion3, which "
                "no parameter of the group has"},
        Written{"Betas",
                {12, 20},
                [](Options& options) {
                  options.betas(Options::Betas{0.5, 0.98});
                },
                "betas (parameter group 0) have another β₁, as under a scheduler with cycle_momentum: it is that of "
                "'lion', while the momentum of 'dion' is mu, which stays 0.95"}),
    [](const auto& info) { return info.param.name; });

TEST(WrittenOptions, AreObeyedBeforeThereAreStatesAndWhereTheyStillCan) {
  const at::Tensor X = start({12, 20});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5));
  Warnings warnings;
  first_options(optimizer).rank_fraction(0.25).orientation(Orientation::left).Q_dtype(at::kDouble);
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  optimizer.step();
  EXPECT_EQ(optimizer.state_of(X).Q().sizes(), (std::vector<int64_t>{20, 3}));
  EXPECT_EQ(optimizer.state_of(X).Q().scalar_type(), at::kDouble);
  first_options(optimizer).mu(0.5).lr(0.2).rank_fraction(0.2);  // of the same rank
  optimizer.step();
  EXPECT_TRUE(warnings.messages.empty());
}

TEST(WrittenOptions, AreToldOnceHoweverOftenTheyChange) {
  const at::Tensor X = start({12, 20});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5));
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  optimizer.step();
  Warnings warnings;
  for (const double written : {0.25, 0.75, 0.3}) {
    first_options(optimizer).rank_fraction(written).ef_decay(written).orientation(Orientation::left);
    optimizer.step();
  }
  EXPECT_EQ(warnings.messages.size(), 3u);
}

// A program may insert, remove and exchange the groups of LibTorch's optimizers.
TEST(WrittenOptions, AreThoseOfTheSameGroupWhereverItStands) {
  const at::Tensor first = start({12, 20}), second = start({9, 9}), third = start({8, 8});
  const auto group_of = [](const at::Tensor& param, Orientation orientation) {
    return OptimizerParamGroup({param}, std::make_unique<DionOptions>(DionOptions(0.1).orientation(orientation)));
  };
  Dion optimizer(
      std::vector<OptimizerParamGroup>{group_of(first, Orientation::left), group_of(second, Orientation::right)});
  const auto step = [&] {
    for (const at::Tensor& param : {first, second, third}) param.mutable_grad() = at::ones_like(param);
    optimizer.step();
  };
  step();
  Warnings warnings;
  optimizer.param_groups().push_back(group_of(third, Orientation::left));
  step();
  EXPECT_EQ(optimizer.state_of(third).step().item<int64_t>(), 1);
  optimizer.param_groups().erase(optimizer.param_groups().begin());
  step();
  EXPECT_EQ(first_options(optimizer).orientation(), Orientation::right);
  EXPECT_EQ(warnings.messages, std::vector<std::string>());
}

TEST(WrittenOptions, ThatLetAnAlgorithmGoOnWithTheStatesOfAnotherAreOneWarning) {
  const at::Tensor X = start({12, 20});
  Muon optimizer({X}, MuonOptions(0.1));
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  optimizer.step();
  Warnings warnings;
  for (int step = 0; step < 2; ++step) {
    first_options(optimizer).algorithm("lion");
    optimizer.step();
  }
  EXPECT_EQ(warnings.messages,
            std::vector<std::string>{"torchdion::Muon: algorithm(\"lion\") (parameter group 0) makes 'lion' go on with "
                                     "the momentum of 'muon', which may mean something else"});
}

TEST(WrittenOptions, HaveAWarningForEachReason) {
  const at::Tensor X = start({12, 20});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5));
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  optimizer.step();
  optimizer.state().clear();
  Warnings warnings;
  first_options(optimizer).algorithm("muon").rank_fraction(0.25);
  optimizer.step();
  optimizer.state().clear();
  first_options(optimizer).algorithm("dion");
  optimizer.step();
  first_options(optimizer).rank_fraction(0.5);
  optimizer.step();
  ASSERT_EQ(warnings.messages.size(), 2u);
  EXPECT_NE(warnings.messages[0].find("is kept and ignored"), std::string::npos);
  EXPECT_NE(warnings.messages[1].find("until resize_rank() is called"), std::string::npos);
}

TEST(WrittenOptions, OfRanksAreAWarningAfterAResizeThatWasRefused) {
  const at::Tensor X = start({12, 20});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5));
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  optimizer.step();
  const at::Tensor steps = optimizer.state_of(X).step();
  auto& state = static_cast<ParamState&>(*optimizer.state()[X.unsafeGetTensorImpl()]);
  Warnings warnings;
  first_options(optimizer).rank_fraction(0.25);
  state.tensor("step", at::Tensor());
  EXPECT_NE(message_of([&] { optimizer.resize_rank(); }).find("lacks the tensor 'step'"), std::string::npos);
  EXPECT_TRUE(warnings.messages.empty());
  state.tensor("step", steps);
  optimizer.step();
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(WrittenOptions, ThatChooseASideOfASquareAreRefusedBeforeTheyAreSaved) {
  const at::Tensor X = start({9, 9}), other = start({9, 9}), twin = start({9, 9});
  const DionOptions options = DionOptions(0.1).rank_fraction(0.5);
  Dion optimizer({X}, options), loaded({other}, options), reference({twin}, options);
  const auto step = [](Dion& own, const at::Tensor& param, int salt) {
    param.mutable_grad() = normal(param.sizes(), salt).to(at::kFloat);
    own.step();
  };
  step(optimizer, X, 1);
  step(reference, twin, 1);
  Warnings warnings;
  first_options(optimizer).orientation(Orientation::left);
  loaded.load_state_dict(optimizer.state_dict());
  EXPECT_EQ(first_options(loaded).orientation(), Orientation::right);
  loaded.load_state_dict(optimizer.whole_state_dict());
  EXPECT_EQ(first_options(loaded).orientation(), Orientation::right);
  other.detach().copy_(X.detach());
  step(loaded, other, 2);
  step(reference, twin, 2);
  EXPECT_TRUE(bitwise_equal(other.detach(), twin.detach()));
  first_options(optimizer).rank_fraction(0.25);
  first_options(reference).rank_fraction(0.25);
  optimizer.resize_rank();
  reference.resize_rank();
  EXPECT_EQ(optimizer.state_of(X).Q().sizes(), reference.state_of(twin).Q().sizes());
  step(optimizer, X, 2);
  ASSERT_EQ(warnings.messages.size(), 1u);
  EXPECT_NE(warnings.messages[0].find("orientation(Orientation::left) (parameter group 0) is not taken"),
            std::string::npos);
}

TEST(WrittenOptions, AreHeardAlsoWhereTheFirstParameterIsAnother) {
  const at::Tensor X = start({9, 9}), more = start({6, 4});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5));
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  more.mutable_grad() = normal(more.sizes(), 1).to(at::kFloat);
  optimizer.step();
  auto& params = optimizer.param_groups()[0].params();
  params.insert(params.begin(), more);
  first_options(optimizer).orientation(Orientation::left);
  Warnings warnings;
  optimizer.step();
  EXPECT_EQ(first_options(optimizer).orientation(), Orientation::right);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

TEST(WrittenOptions, OfALoadedStateAreComparedWithWhatWasLoaded) {
  const at::Tensor X = start({12, 20}), other = start({12, 20});
  Dion optimizer({X}, DionOptions(0.1).rank_fraction(0.5)), loaded({other}, DionOptions(0.1).rank_fraction(0.25));
  X.mutable_grad() = normal(X.sizes(), 1).to(at::kFloat);
  other.mutable_grad() = X.grad();
  optimizer.step();
  Warnings warnings;
  loaded.load_state_dict(optimizer.state_dict());
  loaded.step();
  EXPECT_TRUE(warnings.messages.empty());
  first_options(loaded).rank_fraction(0.25);
  loaded.step();
  ASSERT_EQ(warnings.messages.size(), 1u);
  loaded.resize_rank();
  loaded.step();
  EXPECT_EQ(loaded.state_of(other).Q().size(-1), 3);
  EXPECT_EQ(warnings.messages.size(), 1u);
}

}  // namespace

}  // namespace torchdion
