#include "engine/agreement.h"

#include <gtest/gtest.h>

#include <set>

#include "comm/blocking.h"
#include "comm/mesh_as_threads.h"
#include "sentences.h"
#include "words.h"

namespace torchdion::engine {

namespace {

using comm::Mesh;
using comm::MeshAxes;

// Claims of a group and of two parameters, one on both axes and one on fs alone, as a rank makes them.
std::vector<Claim> claims_of(const MeshAxes& axes) {
  std::vector<Claim> claims{
      {"parameter group 0", {{"lr", "0.1"}, {"mu", "0.95"}}, {axes.fs, axes.tp}, /*is_parameter=*/false},
      {"parameter 0", {{"shape", "[4, 3]"}}, {axes.fs, axes.tp}},
      {"parameter 1", {{"shape", "[5]"}}, {axes.fs}}};
  for (std::size_t i : {1, 2}) claims[i].gradient = at::kFloat, claims[i].shared = claims[i].axes;
  return claims;
}

std::string error_of(const std::vector<Claim>& claims, bool refuses = false, Operation operation = Operation::step) {
  const Speaking speaking({"torchdion::Dion"});
  return sentence_of([&] { agree(operation, refuses, claims); });
}

TEST(Digest, IsTheSameEverywhereAndOfEveryByte) {
  EXPECT_EQ(comm::digest(""), comm::digest(std::string_view()));
  std::set<int64_t> all{comm::digest("")};
  std::string text = "the ranks of a job";
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] ^= 1;
    all.insert(comm::digest(text));
    all.insert(comm::digest(text.substr(0, i + 1)));
    text[i] ^= 1;
  }
  EXPECT_EQ(all.size(), 2 * text.size());
  EXPECT_EQ(comm::digest("torchdion"), -1381794885612921548);
}

TEST(Agreement, OfRanksThatClaimTheSameIsOneMessageOnEachAxis) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {
    EXPECT_EQ(error_of(claims_of(axes)), "");
    EXPECT_EQ(axes.fs.traffic().agreement.calls, 1);
    EXPECT_EQ(axes.tp.traffic().agreement.calls, 1);
    EXPECT_EQ(axes.fs.traffic().elements(), 0) << "digests are none";
  });
}

TEST(Agreement, NamesOptionGroupAndOwnValueOnTheRanksThatDiffer) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {
    std::vector<Claim> claims = claims_of(axes);
    if (axes.rank == 3) claims[0].properties[1].second = "0.9";
    const std::string expected[] = {
        "torchdion::Dion: other ranks of the job disagree about parameters, options or layouts",
        "torchdion::Dion: the ranks of the axis 'fs' must agree on the mu of parameter group 0, got 0.95",
        "torchdion::Dion: the ranks of the axis 'tp' must agree on the mu of parameter group 0, got 0.95",
        "torchdion::Dion: the ranks of the axis 'fs' must agree on the mu of parameter group 0, got 0.9"};
    EXPECT_EQ(error_of(claims), expected[axes.rank]);
  });
}

TEST(Agreement, IsRefusedToOtherParametersAndToMoreOfThem) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    std::vector<Claim> claims = claims_of(axes);
    if (axes.rank == 1) std::swap(claims[1].name, claims[2].name);
    EXPECT_EQ(error_of(claims), c10::str("torchdion::Dion: the ranks of the axis 'fs' must have the same parameters in "
                                         "the same order, got parameter ",
                                         axes.rank));
    claims = claims_of(axes);
    if (axes.rank == 1) claims.pop_back();
    EXPECT_EQ(error_of(claims), c10::str("torchdion::Dion: the ranks of the axis 'fs' must update as many parameters "
                                         "over it, got ",
                                         2 - axes.rank));
  });
}

TEST(Agreement, TellsEveryRankThatAnyRefusesOrDoesSomethingElse) {
  for (int who = 0; who < 4; ++who) {
    Mesh({1, 2, 2}).run([who](MeshAxes axes) {
      const bool is_who = axes.rank == who;
      EXPECT_EQ(error_of(claims_of(axes), is_who),
                "torchdion::Dion: another rank refused this step, and its error says why");
      const std::string other = is_who ? "resize_rank() here and step()" : "step() here and resize_rank()";
      EXPECT_EQ(error_of(claims_of(axes), false, is_who ? Operation::resize_rank : Operation::step),
                "torchdion::Dion: every rank must call the same at the same time, got " + other + " on another rank");
    });
  }
}

TEST(Agreement, TellsEveryRankOfADifferenceOnALineThatItIsNotOn) {
  for (int who = 0; who < 4; ++who) {
    Mesh({1, 2, 2}).run([who](MeshAxes axes) {
      std::vector<Claim> claims = claims_of(axes);
      for (Claim& claim : claims) claim.axes = {axes.fs};
      claims[2].axes = claims[2].shared = {axes.tp};
      if (axes.rank == who) claims[2].properties[0].second = "[6]";
      const bool hears = axes.rank / 2 == who / 2;
      const std::string sentence =
          hears ? c10::str("the ranks of the axis 'tp' must agree on the shape of parameter 1, got [",
                           axes.rank == who ? 6 : 5, "]")
                : "other ranks of the job disagree about parameters, options or layouts";
      EXPECT_EQ(error_of(claims), "torchdion::Dion: " + sentence);
      claims[2].properties[0].second = "[5]";
      if (axes.rank == who) claims[2].gradient.reset();
      const auto gradients = agree(Operation::step, false, claims).gradients;
      EXPECT_EQ(gradients[2], at::kFloat);
      EXPECT_EQ(error_of(claims), "") << "no message is left over";
    });
  }
}

TEST(Agreement, GivesAMissingGradientTheDtypeThatItHasOnOtherRanks) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {
    std::vector<Claim> claims = claims_of(axes);
    const auto dtypes = [&] { return agree(Operation::step, false, claims).gradients; };
    if (axes.rank != 3) claims[1].gradient.reset();
    claims[2].gradient.reset();
    std::vector<std::optional<c10::ScalarType>> expected{std::nullopt, at::kFloat, std::nullopt};
    EXPECT_EQ(dtypes(), expected);
    claims[2].gradient = axes.tp.rank == 0 ? std::optional(at::kBFloat16) : std::nullopt;
    expected[2] = claims[2].gradient;
    EXPECT_EQ(dtypes(), expected) << "not along tp";
    claims[2].gradient = axes.fs.rank == 0 ? at::kBFloat16 : at::kFloat;
    EXPECT_EQ(error_of(claims), c10::str("torchdion::Dion: the ranks of the axis 'fs' must agree on the dtype of the "
                                         "gradient of parameter 1, got ",
                                         axes.fs.rank == 0 ? "BFloat16" : "Float"));
    claims[2].gradient.reset();
    claims[1].gradient = axes.fs.rank == 0 ? std::optional(at::kFloat) : std::nullopt;
    claims[1].shared = {axes.tp};
    EXPECT_NE(error_of(claims).find("gradient of parameter 0, got "), std::string::npos) << "no zero along fs";
  });
}

TEST(Agreement, AsksEveryRankForWhatTheGradientsOfOthersNeed) {
  for (int who = 0; who < 4; ++who) {
    Mesh({1, 2, 2}).run([who](MeshAxes axes) {
      std::vector<Claim> claims = claims_of(axes);
      int asked = 0;
      agree(Operation::step, false, claims, [&](const auto&) { ++asked; });
      EXPECT_EQ(asked, 0) << "all have the same";
      if (axes.rank == 3) claims[1].gradient.reset();
      agree(Operation::step, false, claims, [&](const auto& gradients) { asked += gradients[1] == at::kFloat; });
      EXPECT_EQ(asked, 1);
      const Speaking speaking({"torchdion::Dion"});
      const auto fails_on_who = [&](const auto&) { TORCH_CHECK(axes.rank != who, "no memory"); };
      const std::string error = sentence_of([&] { agree(Operation::step, false, claims, fails_on_who); });
      EXPECT_EQ(error, axes.rank == who ? "no memory"
                                        : "torchdion::Dion: another rank refused this step, and its error says why");
    });
  }
}

// Each rank of tp has parameters of its own, as experts are.
TEST(Agreement, OfRanksThatShareDifferentThingsAlongOtherAxesTakesOneMoreMessage) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {
    std::vector<Claim> claims = claims_of(axes);
    claims[2].name = "parameter of " + std::to_string(axes.tp.rank);
    EXPECT_EQ(error_of(claims), "");
    EXPECT_EQ(axes.fs.traffic().agreement.calls, 2);
    EXPECT_EQ(axes.tp.traffic().agreement.calls, 2);
  });
}

// Two parameters, of which a line of fs holds copies; each rank of tp has pieces of its own.
Comparison comparison_of(const MeshAxes& axes, bool is_due, bool differs) {
  return {is_due, [=] {
            const int64_t piece = 10 * axes.tp.rank;
            return std::vector<Copy>{{1, axes.fs, piece}, {2, axes.fs, piece + (differs ? 1 : 0)}};
          }};
}

TEST(Agreement, OfCopiesThatAreEqualIsNoMessageMoreOnOneAxis) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const Agreed agreed = agree(Operation::step, false, claims_of(axes), {}, comparison_of(axes, true, false));
    EXPECT_TRUE(agreed.apart.empty());
    EXPECT_EQ(axes.fs.traffic().agreement.calls, 1);
  });
}

TEST(Agreement, OfCopiesThatPartIsOfAllRanksThatHaveTheParameter) {
  for (int who = -1; who < 4; ++who) {
    Mesh({1, 2, 2}).run([who](MeshAxes axes) {
      std::vector<Claim> claims = claims_of(axes);
      claims[2].axes = {axes.fs, axes.tp};
      const Comparison comparison = comparison_of(axes, true, axes.rank == who);
      const std::vector<bool> apart = agree(Operation::step, false, claims, {}, comparison).apart;
      EXPECT_EQ(apart, who < 0 ? std::vector<bool>() : std::vector<bool>({false, false, true}));
      EXPECT_EQ(error_of(claims), "") << "no message is left over";
    });
  }
}

TEST(Agreement, OnCopiesIsReachedByRanksThatHaveOtherParameters) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {  // the second parameter is on fs alone
    const Comparison comparison = comparison_of(axes, true, axes.rank == 1);
    const std::vector<bool> apart = agree(Operation::step, false, claims_of(axes), {}, comparison).apart;
    EXPECT_EQ(apart, std::vector<bool>({false, false, axes.tp.rank == 1})) << "all ranks know that there is one";
  });
}

TEST(Agreement, ComparesCopiesWhereAnyRankIsDueTo) {
  for (const bool differs : {false, true}) {
    Mesh({1, 2, 2}).run([differs](MeshAxes axes) {
      const Comparison comparison = comparison_of(axes, axes.rank == 0, differs && axes.rank == 2);
      const std::vector<bool> apart = agree(Operation::step, false, claims_of(axes), {}, comparison).apart;
      const std::vector<bool> expected{false, false, axes.tp.rank == 0};
      EXPECT_EQ(apart, differs ? expected : std::vector<bool>());
    });
  }
}

TEST(Agreement, TellsEveryRankThatOneCannotSayWhatItHolds) {
  for (const bool is_due : {true, false}) {
    Mesh({1, 2, 2}).run([is_due](MeshAxes axes) {
      Comparison comparison = comparison_of(axes, is_due || axes.rank == 0, false);
      if (axes.rank == 3) comparison.copies = []() -> std::vector<Copy> { TORCH_CHECK(false, "no memory"); };
      const Speaking speaking({"torchdion::Dion"});
      EXPECT_EQ(
          sentence_of([&] { agree(Operation::step, false, claims_of(axes), {}, comparison); }),
          axes.rank == 3 ? "no memory" : "torchdion::Dion: another rank refused this step, and its error says why");
      EXPECT_EQ(error_of(claims_of(axes)), "") << "no message is left over";
    });
  }
}

TEST(Agreement, NamesTheFirstFiveParametersThatAreApart) {
  const Speaking speaking({"torchdion::Dion"});
  const std::string end =
      "; all get the first one's weights and states now, as synchronize_replicas() before the first backward pass "
      "gives "
      "them";
  const std::string begin = "torchdion::Dion: replicas must start alike, and differ in ";
  EXPECT_EQ(sentence_of_apart({"a"}), begin + "a" + end);
  EXPECT_EQ(sentence_of_apart({"a", "b", "c", "d", "e"}), begin + "a, b, c, d, e" + end);
  EXPECT_EQ(sentence_of_apart({"a", "b", "c", "d", "e", "f"}), begin + "a, b, c, d, e and 1 more" + end);
}

}  // namespace

}  // namespace torchdion::engine
