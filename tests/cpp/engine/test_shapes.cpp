#include "engine/shapes.h"

#include <gtest/gtest.h>

#include "comm/mesh_as_threads.h"
#include "engine/step_groups.h"
#include "sentences.h"

namespace torchdion::engine {

namespace {

using comm::Mesh;
using comm::MeshAxes;
using Sizes = std::vector<int64_t>;

TEST(ShapeOf, SaysTheMatricesOfTheParameterAndTheSideOfItsFactor) {
  const Group wide = dion_group({{{3, 8, 10}, {3, 8, 2}}}, {.batch_dims = 1});
  const ParameterShape right = shape_of(wide, 0);
  EXPECT_EQ(right.stack, Sizes{3});
  EXPECT_EQ((Sizes{right.m, right.n, right.ranks.front()}), (Sizes{8, 10, 2}));
  EXPECT_TRUE(right.right);
  const ParameterShape fused = shape_of(dion_group({{{24, 10}, {3, 10, 4}}}, {.blocks = 3}), 0);
  EXPECT_EQ(fused.stack, Sizes{3});
  EXPECT_EQ((Sizes{fused.m, fused.n, fused.ranks.front()}), (Sizes{8, 10, 4}));
  EXPECT_FALSE(fused.right);
}

TEST(ShapeOf, ASquareMatrixLeavesTheSideToTheOption) {
  Group square = dion_group({{{9, 9}, {9, 4}}});
  for (const bool right : {true, false}) {
    square.options.set("orientation", std::string_view(right ? "right" : "left"));
    EXPECT_EQ(shape_of(square, 0).right, right);
  }
}

// Five rows over two ranks: three and two.
TEST(ShapeOf, IsThatOfTheWholeMatrixOnRanksThatHoldPieces) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const int64_t rows = axes.fs.rank == 0 ? 3 : 2;
    Group group = dion_group({{{rows, 7}, {rows, 2}}});
    group.layouts.push_back({.rows = axes.fs, .sizes = {5, 7}});
    group.whole_factors = {{{5, 2}}};
    const ParameterShape shape = shape_of(group, 0);
    EXPECT_EQ((Sizes{shape.m, shape.n, shape.ranks.front()}), (Sizes{5, 7, 2}));
    EXPECT_TRUE(shape.right);

    Group other_parameter = group, other_momentum = group, other_factor = group;
    other_parameter.X[0] = at::zeros({4, 7});
    other_momentum.states[kMomentum][0] = at::zeros({4, 7});
    other_factor.states[kQ][0] = at::zeros({4, 2});
    const auto refusal = [](const Group& of) { return sentence_of<c10::ValueError>([&] { shape_of(of, 0); }); };
    const std::string must = c10::str(" must be of shape [", rows, ", 7] as its layout says, got [4, 7]");
    EXPECT_EQ(refusal(other_parameter),
              "torchdion: this rank's piece of a parameter's matrices of shape [5, 7]" + must);
    EXPECT_EQ(refusal(other_momentum), c10::str("torchdion: the state momentum of a parameter of shape [", rows,
                                                ", 7] must have that shape, got [4, 7]"));
    EXPECT_EQ(refusal(other_factor),
              c10::str("torchdion: this rank's piece of a state Q of shape [5, 2] must be of shape [", rows,
                       ", 2] as its layout says, got [4, 2]"));
  });
}

// An exchange of factors sends (m+n)·r elements in place of m·n.
TEST(DecoupledStates, AreThoseOfMatricesWhoseReplicasExchangeFactors) {
  const auto decoupled = [](const char* algorithm, const Sizes& sizes, int64_t r, const Layout& layout) {
    const Sizes ranks = {r};
    const algorithms::Algorithm& of = algorithms::algorithm(algorithm);
    return decoupled_states(of, sizes, ranks, algorithms::options_of(of, {}), layout);
  };
  EXPECT_TRUE(decoupled("dion", {16, 16}, 2, {}).empty()) << "no replicas";
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    const Layout copies{.replicas = axes.dp};
    EXPECT_EQ(decoupled("dion", {16, 16}, 2, copies), std::vector<std::string>{"momentum"});
    EXPECT_TRUE(decoupled("dion", {16, 16}, 16, copies).empty()) << "factors are no fewer";
    EXPECT_TRUE(decoupled("lion", {16, 16}, 2, copies).empty()) << "no algorithm for matrices";
    // Of pieces of 2×16: 18·r elements in place of 32.
    const Layout pieces{.rows = axes.fs, .replicas = axes.dp, .sizes = {4, 16}};
    EXPECT_EQ(decoupled("dion", {4, 16}, 1, pieces).size(), 1u);
    EXPECT_TRUE(decoupled("dion", {4, 16}, 2, pieces).empty());
  });
}

TEST(IsSame, OfLayoutsThatAreMadeOfTheSameLinesInTheSameOrder) {
  Mesh({2, 2, 1}).run([](MeshAxes axes) {
    const Layout rows{.rows = axes.fs, .sizes = {4, 6}}, of_other_sizes{.rows = axes.fs, .sizes = {8, 2}};
    EXPECT_TRUE(is_same(rows, of_other_sizes));
    EXPECT_TRUE(is_same({}, {.rows = axes.tp}));
    EXPECT_FALSE(is_same(rows, {}));
    EXPECT_FALSE(is_same(rows, {.cols = axes.fs}));
    EXPECT_FALSE(is_same(rows, {.rows = axes.dp}));
    EXPECT_FALSE(is_same(rows, {.rows = axes.fs, .replicas = axes.dp}));
    EXPECT_FALSE(is_same(rows, {.rows = axes.fs, .copies = axes.dp}));
    EXPECT_FALSE(is_same({.replicas = axes.dp}, {.copies = axes.dp}));
    EXPECT_FALSE(is_same(rows, {.rows = axes.fs, .has_averaged_copies = true}));
  });
}

}  // namespace

}  // namespace torchdion::engine
