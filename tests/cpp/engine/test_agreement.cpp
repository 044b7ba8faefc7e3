#include "engine/agreement.h"

#include <gtest/gtest.h>

#include "comm/mesh_as_threads.h"

namespace torchdion::engine {

namespace {

using comm::Mesh;
using comm::MeshAxes;

// Claims of two parameters, one on both axes and one on fs alone, as a rank makes them.
std::vector<Claim> claims_of(const MeshAxes& axes) {
  return {{"parameter 0", {{"shape", "[4, 3]"}, {"options", "lr 0.1"}}, {axes.fs, axes.tp}},
          {"parameter 1", {{"shape", "[5]"}, {"options", "lr 0.2"}}, {axes.fs}}};
}

std::string error_of(const std::vector<Claim>& claims) {
  try {
    check_agreement(claims);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Agreement, OfRanksThatClaimTheSameIsSilent) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) { EXPECT_EQ(error_of(claims_of(axes)), ""); });
}

TEST(Agreement, NamesParameterPropertyAndOwnValueOnTheRanksThatDiffer) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {
    std::vector<Claim> claims = claims_of(axes);
    if (axes.rank == 3) claims[0].properties[1].second = "lr 0.3";
    const std::string expected[] = {
        "torchdion::Dion: other ranks of the job disagree about parameters, options or layouts",
        "torchdion::Dion: the ranks of the axis 'fs' must agree on the options of parameter 0, got lr 0.1",
        "torchdion::Dion: the ranks of the axis 'tp' must agree on the options of parameter 0, got lr 0.1",
        "torchdion::Dion: the ranks of the axis 'fs' must agree on the options of parameter 0, got lr 0.3"};
    EXPECT_EQ(error_of(claims), expected[axes.rank]);
  });
}

TEST(Agreement, IsRefusedToOtherParametersAndToMoreOfThem) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    std::vector<Claim> claims = claims_of(axes);
    if (axes.rank == 1) std::swap(claims[0].name, claims[1].name);
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

TEST(OpenStep, TellsEveryRankWhatAnySays) {
  for (int who = 0; who < 4; ++who) {
    Mesh({1, 2, 2}).run([who](MeshAxes axes) {
      const std::vector<std::vector<Axis>> cuts{{axes.fs, axes.tp}, {axes.tp}};
      const bool is_who = axes.rank == who;
      EXPECT_TRUE(open_step({.refused = is_who}, {true, true}, cuts, {}).refused);
      EXPECT_TRUE(open_step({.is_new = is_who}, {true, true}, {{}, {}}, {axes.fs, axes.tp}).is_new);
      const Opening even = open_step({}, {true, false}, cuts, {axes.fs});
      EXPECT_FALSE(even.refused || even.is_new || even.is_uneven);
      EXPECT_TRUE(open_step({}, {is_who, true}, cuts, {}).is_uneven);
      EXPECT_EQ(open_step({}, {true, axes.tp.rank == 0}, cuts, {}).is_uneven, true) << "along tp";
      EXPECT_FALSE(open_step({}, {true, axes.fs.rank == 0}, cuts, {}).is_uneven) << "cut along tp alone";
    });
  }
}

TEST(AnyOfRanks, IsTrueOnTheRanksOfTheAxesOfEachFlag) {
  Mesh({1, 2, 2}).run([](MeshAxes axes) {
    const bool is_last = axes.rank == 3;
    const std::vector<bool> flags =
        any_of_ranks({is_last, is_last, is_last, false}, {{axes.fs, axes.tp}, {axes.fs}, {}, {axes.fs, axes.tp}});
    EXPECT_TRUE(flags[0]);
    EXPECT_EQ(flags[1], axes.tp.rank == 1);
    EXPECT_EQ(flags[2], is_last);
    EXPECT_FALSE(flags[3]);
    EXPECT_EQ(axes.fs.traffic().agreement.calls, 1);
    EXPECT_EQ(axes.fs.traffic().elements(), 0) << "flags are none";
  });
}

}  // namespace

}  // namespace torchdion::engine
