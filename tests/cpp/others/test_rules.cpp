// Keys of groups by which others choose an algorithm: obeyed, or refused.
#include <gtest/gtest.h>

#include "algorithms/all.h"
#include "optim/model.h"
#include "others/rules.h"
#include "others/saved_with.h"

namespace torchdion {

namespace {

TEST(Rules, OfAGroupThatNamesNoneAreThoseOfItsKeysBesideTheOptimizersOwn) {
  const auto chosen = [](const others::Entries& group, const char* own, const char* preferred) {
    return others::chosen_algorithm(group, own, preferred, /*is_named=*/false, " (parameter group 1)");
  };
  EXPECT_EQ(chosen({{"use_muon", false}}, "muon", "muon"), "adamw");
  EXPECT_EQ(chosen({{"use_muon", false}, {"kind", "lion"}}, "muon", "muon"), "lion");
  EXPECT_EQ(chosen({{"use_muon", 1}}, "adamw", "normuon"), "normuon");
  const std::string refused = message_of([&] { chosen({{"use_muon", true}}, "adamw", "adamw"); });
  EXPECT_EQ(refused.substr(0, refused.find('\n')),
            "torchdion: use_muon=True means algorithm='muon', and the optimizer's own is 'adamw' (parameter group 1); "
            "leave use_muon out, or name the algorithm");
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
