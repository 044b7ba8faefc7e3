#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <torchdion/checkpoint.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "optim/model.h"

namespace torchdion {

namespace {

using Dict = c10::impl::GenericDict;

std::string temporary_file(const std::string& name) {
  return (std::filesystem::temp_directory_path() / (std::to_string(getpid()) + "." + name)).string();
}

struct Way {
  std::string name;
  std::function<void(const Dion&, Dion&)> move_state;
};

class StateMovedBy : public testing::TestWithParam<Way> {};

TEST_P(StateMovedBy, ContinuesOnTheSameTrajectory) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 3);
  optimizer.param_groups()[1].options().set_lr(0.07);

  const Model twin = model.clone();
  Dion resumed(twin.groups(DionOptions(0.9).mu(0.5)));
  GetParam().move_state(optimizer, resumed);
  EXPECT_EQ(resumed.param_groups()[1].options().get_lr(), 0.07);
  EXPECT_EQ(static_cast<DionOptions&>(resumed.param_groups()[0].options()).mu(), 0.95);
  take_steps(optimizer, model, 3, 3);
  take_steps(resumed, twin, 3, 3);
  expect_bitwise_equal(model.params(), twin.params());
  EXPECT_EQ(resumed.state_of(twin.vector).step().item<double>(), 6);
}

void by_stream(const Dion& from, Dion& to) {
  std::stringstream stream;
  torch::save(from, stream);
  torch::load(to, stream);
}

void inside_the_archive_of_a_model(const Dion& from, Dion& to) {
  torch::nn::Linear model(3, 2);
  std::stringstream stream;
  torch::serialize::OutputArchive output, of_model(output.compilation_unit()), of_optimizer(output.compilation_unit());
  model->save(of_model);
  from.save(of_optimizer);
  output.write("model", of_model);
  output.write("optimizer", of_optimizer);
  output.save_to(stream);
  torch::serialize::InputArchive input, saved;
  input.load_from(stream);
  input.read("optimizer", saved);
  to.load(saved);
}

void by_file(const Dion& from, Dion& to) {
  const std::string path = temporary_file("state.pt");
  write_checkpoint(from.state_dict(), path);
  to.load_state_dict(read_checkpoint(path));
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, StateMovedBy,
    testing::Values(Way{"StateDict", [](const Dion& from, Dion& to) { to.load_state_dict(from.state_dict()); }},
                    Way{"TorchSave", by_stream}, Way{"ModelArchive", inside_the_archive_of_a_model},
                    Way{"Checkpoint", by_file}),
    [](const auto& info) { return info.param.name; });

TEST(StateDict, IsTheSameEveryTime) {
  const Model model, twin = model.clone();
  Dion first(model.groups()), second(twin.groups());
  take_steps(first, model, 0, 2);
  take_steps(second, twin, 0, 2);
  const std::string a = temporary_file("a.pt"), b = temporary_file("b.pt");
  write_checkpoint(first.state_dict(), a);
  write_checkpoint(second.state_dict(), b);
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(bytes(a), bytes(b));
  EXPECT_GT(bytes(a).size(), 1000u);
  std::filesystem::remove(a);
  std::filesystem::remove(b);
}

TEST(StateDict, IsCopiedWhenItIsLoaded) {
  const Model model, twin = model.clone();
  Dion optimizer(model.groups()), other(twin.groups());
  take_steps(optimizer, model, 0, 1);
  other.load_state_dict(optimizer.state_dict());
  const at::Tensor before = optimizer.state_of(model.weight).momentum().clone();
  take_steps(other, twin, 1, 1);
  EXPECT_TRUE(bitwise_equal(optimizer.state_of(model.weight).momentum(), before));
}

TEST(StateDict, TakesTheDtypeOfTheParameterOrTheConfiguredOne) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight});
  take_steps(optimizer, model, 0, 1);
  const at::Tensor weight = model.weight.detach().to(at::kFloat).requires_grad_();
  Dion other(std::vector<at::Tensor>{weight});
  other.load_state_dict(optimizer.state_dict());
  EXPECT_EQ(other.state_of(weight).momentum().scalar_type(), at::kFloat);
  EXPECT_EQ(other.state_of(weight).Q().scalar_type(), at::kFloat);
}

TEST(StateDict, OfMomentaBeyondFP16IsLoadedAsItsLargestNumber) {
  const at::Tensor wide = at::ones({3, 4}).requires_grad_(), narrow = at::ones({3, 4}, at::kHalf).requires_grad_();
  Dion optimizer(std::vector<at::Tensor>{wide}), other(std::vector<at::Tensor>{narrow});
  wide.mutable_grad() = at::full({3, 4}, -1e6);
  optimizer.step();
  optimizer.state_of(wide).momentum()[0][0] = std::numeric_limits<double>::infinity();
  other.load_state_dict(optimizer.state_dict());
  const at::Tensor loaded = other.state_of(narrow).momentum().flatten();
  EXPECT_TRUE(loaded[0].isposinf().item<bool>());
  EXPECT_TRUE(loaded.slice(0, 1).eq(-65504).all().item<bool>());
}

TEST(StateDict, KeepsEntriesOfGroupsThatAreNoOptions) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight});
  const Dict saved = optimizer.state_dict().toGenericDict();
  Dict group = saved.at("param_groups").toListRef()[0].toGenericDict();
  group.insert("initial_lr", 0.125);
  optimizer.load_state_dict(saved);
  const c10::IValue again = optimizer.state_dict().toGenericDict().at("param_groups").toListRef()[0];
  EXPECT_EQ(again.toGenericDict().at("initial_lr").toDouble(), 0.125);
}

TEST(StateDict, TakesTheRateThatAnOlderVersionCalledAScale) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight});
  const auto load = [&](bool is_old) {
    const Dict saved = optimizer.state_dict().toGenericDict();
    Dict group = saved.at("param_groups").toListRef()[0].toGenericDict();
    group.insert("lr_scale", 0.25);
    if (is_old) {
      EXPECT_EQ(group.erase("lr_multiplier"), 1);
    }
    Dion other(std::vector<at::Tensor>{model.weight});
    other.load_state_dict(saved);
    const c10::IValue again = other.state_dict().toGenericDict().at("param_groups").toListRef()[0];
    return again.toGenericDict();
  };
  const Dict older = load(true);
  EXPECT_EQ(older.at("lr_multiplier").toDouble(), 0.25);
  EXPECT_FALSE(older.contains("lr_scale"));
  const Dict of_a_schedule = load(false);
  EXPECT_EQ(of_a_schedule.at("lr_multiplier").toDouble(), 1);
  EXPECT_EQ(of_a_schedule.at("lr_scale").toDouble(), 0.25);
}

// What is changed in a good state dict, and the words that say so.
struct Damage {
  std::string name;
  std::function<void(Dict&)> to;
  std::string sentence;
};

Dict group_of(const Dict& saved, int index) { return saved.at("param_groups").toListRef()[index].toGenericDict(); }
Dict state_of(const Dict& saved, int64_t index) { return saved.at("state").toGenericDict().at(index).toGenericDict(); }

class DamagedStateDict : public testing::TestWithParam<Damage> {};

TEST_P(DamagedStateDict, IsRefusedWholeAndLeavesTheOptimizerAsItWas) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 2);
  const std::string path = temporary_file("damaged.pt");
  write_checkpoint(optimizer.state_dict(), path);
  take_steps(optimizer, model, 2, 1);
  Dict saved = read_checkpoint(path).toGenericDict();
  std::filesystem::remove(path);
  GetParam().to(saved);

  const at::Tensor momentum = optimizer.state_of(model.weight).momentum(), before = momentum.clone();
  const std::string message = message_of([&] { optimizer.load_state_dict(saved); });
  EXPECT_NE(message.find(GetParam().sentence), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(optimizer.state_of(model.weight).momentum().is_same(momentum));
  EXPECT_TRUE(bitwise_equal(momentum, before));
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, DamagedStateDict,
    testing::Values(
        Damage{"NoState", [](Dict& saved) { (void)saved.erase("state"); },
               "state_dict must have the dict 'state', got the keys ['param_groups']"},
        Damage{"GroupsOfAnotherType", [](Dict& saved) { saved.insert_or_assign("param_groups", 3); },
               "state_dict must have the list 'param_groups', got one of type int"},
        Damage{"FewerGroups",
               [](Dict& saved) {
                 c10::impl::GenericList groups(c10::AnyType::get());
                 groups.push_back(group_of(saved, 0));
                 saved.insert_or_assign("param_groups", groups);
               },
               "the loaded state dict has a different number of parameter groups: 1, where the optimizer has 3"},
        Damage{"FewerParameters",
               [](Dict& saved) {
                 c10::impl::GenericList params(c10::AnyType::get());
                 params.push_back(0);
                 group_of(saved, 0).insert_or_assign("params", params);
               },
               "the loaded group doesn't match the size of the optimizer's: 1 parameters, where it has 3 (parameter "
               "group 0 "},
        Damage{"OptionOfAnotherType", [](Dict& saved) { group_of(saved, 1).insert_or_assign("mu", "much"); },
               "mu must be in [0, 1), got 'much' (parameter group 1 of the state dict)"},
        Damage{"OptionOutOfRange", [](Dict& saved) { group_of(saved, 2).insert_or_assign("lr", -1.0); },
               "lr must be a finite number ≥ 0 (a Tensor lr must be 1-element), got -1.0 (parameter group 2 of the "
               "state dict)"},
        Damage{"UnknownName", [](Dict& saved) { group_of(saved, 0).insert_or_assign("orthonormalize", "svd"); },
               "orthonormalize must be one of 'auto', 'rcqr', 'cholesky_qr', 'qr', got 'svd'"},
        Damage{"NameOfTwoLines", [](Dict& saved) { group_of(saved, 0).insert_or_assign("orthonormalize", "s\nvd"); },
               "'qr', got a value of type str"},
        Damage{
            "NoMomentum", [](Dict& saved) { (void)state_of(saved, 4).erase("momentum"); },
            "the state of parameter 0 (parameter group 2) of shape [5] lacks the tensor 'momentum': it has 'variance'; "
            "is it the checkpoint of another optimizer or with other options?"},
        Damage{"QIsNoTensor", [](Dict& saved) { state_of(saved, 3).insert_or_assign("Q", 2.0); },
               "the state Q of parameter 0 (parameter group 1) must be a tensor, got float"},
        Damage{"QOfIntegers",
               [](Dict& saved) {
                 state_of(saved, 0).insert_or_assign("Q", at::ones({12, 6}, at::kLong));
               },
               "must be a dense floating-point tensor"},
        Damage{"QOfAnotherShape",
               [](Dict& saved) {
                 state_of(saved, 0).insert_or_assign("Q", at::ones({13, 6}));
               },
               "must have the shape [12, r] or [20, r]"},
        Damage{
            "MomentumOfAnotherModel",
            [](Dict& saved) {
              state_of(saved, 1).insert_or_assign("momentum", at::ones({9, 8}));
            },
            "the state momentum of parameter 1 (parameter group 0) of shape [9, 9] must have that shape, got [9, 8]"},
        Damage{"NoVariance", [](Dict& saved) { (void)state_of(saved, 4).erase("variance"); },
               "lacks the tensor 'variance': it has 'momentum'"},
        Damage{"StepIsNaN", [](Dict& saved) { state_of(saved, 0).insert_or_assign("step", at::full({}, NAN)); },
               "the state step of parameter 0 (parameter group 0) must be a whole number from 0 to 16777216, got nan"},
        Damage{"NegativeStep", [](Dict& saved) { state_of(saved, 0).insert_or_assign("step", -1); },
               "must be a whole number from 0 to 16777216, got -1"},
        Damage{"StepBeyondIntegers", [](Dict& saved) { state_of(saved, 4).insert_or_assign("step", 1e30); },
               "must be a whole number from 0 to 16777216, got 1e+30"},
        Damage{"HalfAStep", [](Dict& saved) { state_of(saved, 4).insert_or_assign("step", 2.5); },
               "must be a whole number from 0 to 16777216, got 2.5"},
        Damage{"MetaStep",
               [](Dict& saved) { state_of(saved, 4).insert_or_assign("step", at::zeros({}, at::device(at::kMeta))); },
               "the state step of parameter 0 (parameter group 2) must be a whole number from 0 to 16777216, got a "
               "Tensor of shape []"},
        Damage{"MetaQ",
               [](Dict& saved) {
                 state_of(saved, 0).insert_or_assign("Q", at::ones({12, 4}, at::device(at::kMeta)));
               },
               "the state Q of parameter 0 (parameter group 0) must have memory, got meta without any"}),
    [](const auto& info) { return info.param.name; });

TEST(StateDict, OfNoDictIsRefused) {
  Dion optimizer(Model().groups());
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(3); }), "torchdion::Dion: state_dict must be a dict, got int");
}

TEST(Archive, OfAnotherOptimizerIsRefused) {
  const Model model;
  Dion optimizer(model.groups());
  torch::optim::AdamW adamw(model.params());
  model.give_gradients(1);
  adamw.step();
  std::stringstream stream;
  torch::save(adamw, stream);
  const std::string message = message_of([&] { torch::load(optimizer, stream); });
  EXPECT_EQ(message.find("torchdion::Dion: "), 0u) << message;
}

TEST(Archive, CutShortIsRefusedAndLeavesTheOptimizerAsItWas) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  std::stringstream stream;
  torch::save(optimizer, stream);
  const std::string whole = stream.str();
  const at::Tensor before = optimizer.state_of(model.weight).momentum().clone();
  for (const double part : {0.0, 0.3, 0.7, 0.999}) {
    std::stringstream cut(whole.substr(0, static_cast<std::size_t>(part * static_cast<double>(whole.size()))));
    EXPECT_THROW(torch::load(optimizer, cut), c10::Error);
    EXPECT_TRUE(bitwise_equal(optimizer.state_of(model.weight).momentum(), before));
  }
}

TEST(Options, AndStateSerializeByThemselves) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  torch::serialize::OutputArchive output, of_state(output.compilation_unit());
  const DionOptions options = DionOptions(0.3).betas(DionOptions::Betas{0.8, 0.9}).batch_dims(1).Q_dtype(at::kBFloat16);
  options.serialize(output);
  optimizer.state_of(model.vector).serialize(of_state);
  output.write("momentum_state", of_state);
  std::stringstream stream;
  output.save_to(stream);
  torch::serialize::InputArchive input, state_input;
  input.load_from(stream);
  input.read("momentum_state", state_input);
  DionOptions read;
  read.serialize(input);
  EXPECT_EQ(read.lr(), 0.3);
  EXPECT_EQ(read.betas(), (DionOptions::Betas{0.8, 0.9}));
  EXPECT_EQ(read.batch_dims(), 1);
  EXPECT_EQ(read.Q_dtype(), at::kBFloat16);
  ParamState state;
  state.serialize(state_input);
  EXPECT_TRUE(bitwise_equal(state.variance(), optimizer.state_of(model.vector).variance()));
  EXPECT_FALSE(state.Q().defined());
}

}  // namespace

}  // namespace torchdion
