// Keys of state dicts by which others call an option or choose an algorithm: obeyed, or said.
#include <ATen/core/Dict.h>
#include <gtest/gtest.h>

#include <tuple>

#include "algorithms/all.h"
#include "optim/model.h"
#include "optim/warnings.h"

namespace torchdion {

namespace {

using Dict = c10::impl::GenericDict;
using Items = std::vector<std::pair<std::string, c10::IValue>>;

c10::IValue list_of_one(const c10::IValue& value) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(value);
  return list;
}

// A state dict without states: the group of `optimizer`, or of no optimizer here, and more entries.
c10::IValue saved_with(const Items& items, const Optimizer* optimizer = nullptr) {
  Dict group(c10::StringType::get(), c10::AnyType::get()), all(c10::StringType::get(), c10::AnyType::get());
  if (optimizer) {
    const c10::IValue own = optimizer->state_dict().toGenericDict().at("param_groups").toListRef().front();
    for (const auto& item : own.toGenericDict()) group.insert(item.key(), item.value());
  }
  group.insert_or_assign("params", list_of_one(0));
  for (const auto& [key, value] : items) group.insert_or_assign(key, value);
  all.insert("state", Dict(c10::IntType::get(), c10::AnyType::get()));
  all.insert("param_groups", list_of_one(group));
  return all;
}

const Options& options_in(const Optimizer& optimizer) {
  return static_cast<const Options&>(optimizer.param_groups()[0].options());
}

Dict first_group_of(const Optimizer& optimizer) {
  return optimizer.state_dict().toGenericDict().at("param_groups").toListRef().front().toGenericDict();
}

TEST(OtherNames, OfAGroupThatAnotherProgramSavedAreItsOptions) {
  const Model model;
  Muon muon({model.weight}, MuonOptions().scalar_algorithm("adamw"));
  Warnings warnings;
  muon.load_state_dict(
      saved_with({{"momentum", 0.5}, {"wd", 0.25}, {"eps", 1e-5}, {"beta2", 0.5}, {"use_muon", true}, {"lr", 0.3}}));
  EXPECT_EQ(options_in(muon).mu(), 0.5);
  EXPECT_EQ(options_in(muon).weight_decay(), 0.25);
  EXPECT_EQ(options_in(muon).epsilon(), 1e-5);
  EXPECT_EQ(std::get<1>(*options_in(muon).betas()), 0.5);
  EXPECT_EQ(options_in(muon).lr(), 0.3);
  Dion2 dion2({model.square});
  dion2.load_state_dict(saved_with({{"momentum", 0.5}, {"wd", c10::IValue()}}));
  EXPECT_EQ(options_in(dion2).ef_decay(), 0.5);
  EXPECT_TRUE(warnings.messages.empty());
  EXPECT_EQ(message_of([&] {
              muon.load_state_dict(saved_with({{"momentum", 1.5}}));
            }),
            "torchdion::Muon: mu must be in [0, 1), got 1.5 (parameter group 0 of the state dict)");
}

TEST(OtherNames, OfOurGroupsSayWhatOursSay) {
  const Model model;
  Muon optimizer({model.weight});
  Warnings warnings;
  optimizer.load_state_dict(saved_with({{"momentum", 0.5}, {"mu", 0.5}, {"beta1", 0.95}}, &optimizer));
  EXPECT_TRUE(warnings.messages.empty());
  static_cast<Options&>(optimizer.param_groups()[0].options()).mu(0.75).betas(Options::Betas{0.5, 0.6});
  EXPECT_EQ(first_group_of(optimizer).at("momentum").toDouble(), 0.75);
  EXPECT_EQ(first_group_of(optimizer).at("beta1").toDouble(), 0.5);
  optimizer.load_state_dict(saved_with({{"momentum", 0.25}}, &optimizer));
  EXPECT_EQ(options_in(optimizer).mu(), 0.75);
  EXPECT_EQ(warnings.messages, std::vector<std::string>{"torchdion::Muon: momentum=0.25 means mu=0.25, got mu=0.75 too "
                                                        "(parameter group 0 of the state dict); mu=0.75 holds"});
}

struct Choice {
  const char *key, *algorithm;
  c10::IValue value;
  std::string sentence;     // empty: it is taken
  const char* advice = "";  // behind the name of the group
};

constexpr const char* kAdvice = "; name the algorithm, or another label";

std::string refusal(const std::string& key, const std::string& value) {
  std::string known = "'adam'";
  for (const algorithms::Algorithm* algorithm : algorithms::all()) known += c10::str(", '", algorithm->name, "'");
  return key + " must be one of " + known + ", got " + value;
}

class OtherMuons : public testing::TestWithParam<Choice> {};

TEST_P(OtherMuons, GroupsAreTakenByTheAlgorithmThatTheySayAndByNoOther) {
  const Model model;
  const Choice& choice = GetParam();
  Muon optimizer({model.weight}, MuonOptions().algorithm(choice.algorithm));
  const std::string& sentence = choice.sentence;
  const std::string expected =
      sentence.empty() ? "" : "torchdion::Muon: " + sentence + " (parameter group 0 of the state dict)" + choice.advice;
  EXPECT_EQ(message_of([&] { optimizer.load_state_dict(saved_with({{choice.key, choice.value}})); }), expected);
  EXPECT_EQ(message_of([&] {
              optimizer.load_state_dict(saved_with({{choice.key, choice.value}}, &optimizer));
            }),
            expected);
  if (sentence.empty()) {
    EXPECT_EQ(first_group_of(optimizer).at(choice.key), choice.value);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, OtherMuons,
    testing::Values(
        Choice{"use_muon", "muon", true, ""}, Choice{"use_muon", "normuon", true, ""},
        Choice{"use_muon", "adamw", false, ""}, Choice{"is_muon", "lion", false, ""},
        Choice{"kind", "muon", "matrix", ""}, Choice{"kind", "adamw", "Adam", ""},
        Choice{"use_muon", "muon", c10::IValue(), ""},
        Choice{"use_muon", "muon", false, "use_muon=False means algorithm='adamw', got algorithm='muon' too"},
        Choice{"is_muon", "dion", true, "is_muon=True means algorithm='muon', got algorithm='dion' too"},
        Choice{"kind", "muon", "adamw", "kind='adamw' means algorithm='adamw', got algorithm='muon' too"},
        Choice{"optim_type", "lion", "adam", "optim_type='adam' means algorithm='adamw', got algorithm='lion' too"},
        Choice{"use_muon", "muon", "yes", "use_muon must be True or False, got 'yes'"},
        Choice{"use_adam", "adamw", true, ""}, Choice{"use_adamw", "dion", false, ""},
        Choice{"use_adam", "muon", true, "use_adam=True means algorithm='adamw', got algorithm='muon' too"},
        Choice{"use_adamw", "adamw", false, "use_adamw=False means algorithm='muon', got algorithm='adamw' too"},
        Choice{"kind", "muon", "lambda", ""}, Choice{"kind", "dion2", "dion2_heads", ""},
        Choice{"kind", "normuon", "Muon-matrices", ""},
        Choice{"kind", "muon", "adam8bit", "kind='adam8bit' says 'adam', got algorithm='muon'", kAdvice},
        Choice{"kind", "muon", "soap opera", "kind='soap opera' says 'soap', got algorithm='muon'", kAdvice},
        Choice{"kind", "dion", "dion2_heads", "kind='dion2_heads' says 'dion2', got algorithm='dion'", kAdvice},
        Choice{"kind", "muon", "shampoo", refusal("kind", "'shampoo'")},
        Choice{"optim", "muon", "mine", refusal("optim", "'mine'")},
        Choice{"optimizer", "muon", int64_t{3}, refusal("optimizer", "3")}));

}  // namespace

}  // namespace torchdion
