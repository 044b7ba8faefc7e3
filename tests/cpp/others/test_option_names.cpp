// Keys of groups by which others call an option: obeyed, or said.
#include <gtest/gtest.h>

#include <tuple>

#include "optim/model.h"
#include "optim/warnings.h"
#include "others/option_names.h"
#include "others/saved_with.h"

namespace torchdion {

namespace {

const Options& options_in(const Optimizer& optimizer) {
  return static_cast<const Options&>(optimizer.param_groups()[0].options());
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
  EXPECT_EQ(
      message_of([&] {
        muon.load_state_dict(saved_with({{"momentum", 1.5}}));
      }),
      "torchdion::Muon: mu must be in [0, 1), got 1.5 (parameter group 0 of the state dict, given as 'momentum')");
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

// A group of Muon, with what a program has written into it.
others::Entries group_with(const std::vector<std::pair<std::string, c10::IValue>>& written) {
  others::Entries group{{"algorithm", "muon"},  {"scalar_algorithm", "lion"},
                        {"mu", 0.95},           {"betas", c10::ivalue::Tuple::create(0.95, 0.98)},
                        {"weight_decay", 0.01}, {"ef_decay", 0.95}};
  for (const auto& [key, value] : written) group[key] = value;
  return group;
}

TEST(OtherNames, TheLastOneThatWasWrittenHolds) {
  others::Entries group = group_with({{"momentum", 0.5}, {"beta2", 0.7}});
  const others::United united = others::unite_names(group, {"momentum", "beta2"}, true, " (parameter group 0)");
  EXPECT_EQ(united.meant, (std::map<std::string, std::string>{{"momentum", "mu"}, {"beta2", "betas"}}));
  EXPECT_EQ(group["mu"], 0.5);
  EXPECT_EQ(group["betas"].toTupleRef().elements()[1], 0.7);
  group["mu"] = 0.8;
  others::unite_names(group, {"mu"}, true, "");
  EXPECT_EQ(group["momentum"], 0.8);
}

TEST(OtherNames, ThatContradictAreRefusedAtTheDoorAndLaterOursHolds) {
  others::Entries group = group_with({{"momentum", 0.5}, {"mu", 0.8}});
  const std::string refused = message_of([&] {
    others::unite_names(group, {"mu", "momentum"}, true, " (parameter group 1)");
  });
  EXPECT_EQ(refused.substr(0, refused.find('\n')),
            "torchdion: momentum=0.5 means mu=0.5, got mu=0.8 too (parameter group 1)");
  const others::United united = others::unite_names(group, {"mu", "momentum"}, false, "");
  EXPECT_EQ(united.contradictions.at("momentum"), "momentum=0.5 means mu=0.5, got mu=0.8 too; mu=0.8 holds");
  EXPECT_EQ(group["momentum"], 0.8);
}

TEST(OtherNames, RefuseAValueUnderBothNames) {
  others::Entries group = group_with({{"momentum", 1.5}});
  EXPECT_NE(message_of([&] {
              others::unite_names(group, {"momentum"}, false, " (parameter group 1)");
            }).find("mu must be in [0, 1), got 1.5 (parameter group 1, given as 'momentum')"),
            std::string::npos);
  group = group_with({{"beta1", true}});
  EXPECT_NE(message_of([&] { others::unite_names(group, {"beta1"}, false, ""); }).find("beta1 must be in [0, 1), got"),
            std::string::npos);
}

}  // namespace

}  // namespace torchdion
