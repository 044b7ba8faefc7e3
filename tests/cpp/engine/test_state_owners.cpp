// Who owns which states, and what travels to owners.
#include "engine/state_owners.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/mesh_as_threads.h"
#include "engine/step_groups.h"
#include "sentences.h"
#include "tensors.h"

namespace torchdion::engine {

namespace {

using algorithms::Options;
using comm::Mesh;
using comm::MeshAxes;
using comm::Shares;

Options options_of(const char* algorithm, int64_t batch_dims = 0, int64_t blocks = 1) {
  Options options;
  for (const algorithms::Option& option : algorithms::options()) options.set(option.name, option.initial);
  options.set("algorithm", std::string_view(algorithm));
  options.set("owners", std::string_view("shard"));
  options.set("batch_dims", batch_dims);
  options.set("blocks", blocks);
  return options;
}

const Axis& four_ranks() {
  static const Axis axis = [] {
    Axis first;
    Mesh({4, 1, 1}).run([&](MeshAxes axes) {
      if (axes.rank == 0) first = axes.dp;
    });
    return first;
  }();
  return axis;
}

std::vector<Shares> shares_of(const Options& options, const std::vector<std::vector<int64_t>>& sizes) {
  std::vector<Owned> owned;
  for (const std::vector<int64_t>& each : sizes) owned.push_back({0, each, &options, four_ranks()});
  return engine::shares_of(owned);
}

int64_t sum(const Shares& shares) { return std::accumulate(shares.begin(), shares.end(), int64_t{0}); }

TEST(OwnersOfEntries, HaveAsManyOfAllParametersTogether) {
  const std::vector<std::vector<int64_t>> sizes{{10, 7}, {3}, {5, 2, 3}, {1, 20}, {}, {50257, 8}};
  const std::vector<Shares> shares = shares_of(options_of("adamw"), sizes);
  std::vector<int64_t> loads(4);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const int64_t length = sizes[i].empty() ? 1 : sizes[i].front();
    const int64_t row =
        std::accumulate(sizes[i].begin() + (sizes[i].empty() ? 0 : 1), sizes[i].end(), int64_t{1}, std::multiplies<>());
    EXPECT_EQ(sum(shares[i]), length);
    for (int rank = 0; rank < 4; ++rank) loads[rank] += shares[i][rank] * row;
  }
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  EXPECT_LE(*most - *least, 8) << "a row of the last: the others fit around it";
}

TEST(OwnersOfMatrices, HaveWholeOnesWhichAreSharedOutByTheirCost) {
  // Four cost as much as the first, and each rank has one of them but that of the first.
  const std::vector<Shares> shares =
      shares_of(options_of("muon"), {{64, 64}, {32, 32}, {64, 16}, {16, 64}, {32, 32}, {32, 32}});
  for (const Shares& share : shares) EXPECT_EQ(std::count(share.begin(), share.end(), 0), 3) << "of each one rank";
  EXPECT_EQ(shares[0], (Shares{64, 0, 0, 0}));
  EXPECT_EQ(shares[1], (Shares{0, 32, 0, 0}));
  EXPECT_EQ(shares[4], (Shares{0, 0, 32, 0}));
  EXPECT_EQ(shares[5], (Shares{0, 0, 0, 32}));
  EXPECT_EQ(shares[2].front() + shares[3].front(), 0) << "whose owner has enough to do";
}

TEST(OwnersOfMatrices, ShareStacksOutAndKeepFusedOnesTogether) {
  EXPECT_EQ(shares_of(options_of("muon", 1), {{6, 4, 4}})[0], (Shares{2, 2, 1, 1}));
  EXPECT_EQ(shares_of(options_of("muon", 0, 3), {{12, 4}})[0], (Shares{12, 0, 0, 0}));
  EXPECT_EQ(shares_of(options_of("muon"), {{6, 2, 3, 3}})[0], (Shares{6, 0, 0, 0})) << "a convolution";
  EXPECT_EQ(shares_of(options_of("muon"), {{6}})[0], (Shares{2, 2, 1, 1})) << "under the scalar rule";
  EXPECT_EQ(shares_of(options_of("muon"), {{0, 4}})[0], (Shares{0, 0, 0, 0}));
}

TEST(Owners, AreNotMovedByALaterGroup) {
  const Options muon = options_of("muon"), adamw = options_of("adamw");
  std::vector<Owned> owned{{0, {8, 8}, &muon, four_ranks()}, {0, {9, 3}, &muon, four_ranks()}};
  const std::vector<Shares> before = engine::shares_of(owned);
  owned.push_back({1, {64, 64}, &muon, four_ranks()});
  owned.push_back({2, {30, 2}, &adamw, four_ranks()});
  const std::vector<Shares> after = engine::shares_of(owned);
  EXPECT_EQ(before[0], after[0]);
  EXPECT_EQ(before[1], after[1]);
  EXPECT_EQ(after[2], (Shares{0, 0, 64, 0})) << "after the ranks that have some";
  EXPECT_EQ(after[3], (Shares{8, 8, 7, 7})) << "no matrix keeps one from entries";
}

TEST(OwnedParts, AreTheRowsOfStatesOrAllOfThem) {
  const at::Tensor matrix = normal({6, 4}, 1), number = normal({}, 2), rows = normal({5}, 3);
  // What a second rank owns, after so many rows of the first.
  const auto part = [](const at::Tensor& state, std::vector<int64_t> parameter, Piece piece) {
    Part second{{}, {piece.begin, piece.size}, std::move(parameter)};
    second.axis.rank = 1;
    second.axis.size = 2;
    const at::Tensor own = second.of(state);
    EXPECT_EQ(own.sizes(), at::IntArrayRef(second.sizes_of(state.sizes())));
    return own;
  };
  EXPECT_TRUE(bitwise_equal(part(matrix, {6, 4}, {2, 3}), matrix.narrow(0, 2, 3)));
  EXPECT_EQ(part(matrix, {6, 4}, {6, 0}).numel(), 0);
  EXPECT_TRUE(bitwise_equal(part(number, {}, {0, 1}), number));
  EXPECT_EQ(part(number, {}, {1, 0}).numel(), 0);
  // A number for each of the 5 rows of a matrix that lies transposed in its parameter of 6 rows.
  EXPECT_TRUE(bitwise_equal(part(rows, {6, 5}, {0, 6}), rows));
  EXPECT_EQ(part(rows, {6, 5}, {6, 0}).numel(), 0);
}

TEST(OwnedParts, AreGatheredFromAllRanks) {
  struct Case {
    std::vector<int64_t> state, parameter;
    Shares shares;
  };
  const Case cases[] = {{{7, 3}, {7, 3}, {2, 0, 5}},
                        {{7, 3}, {7, 3}, {0, 7, 0}},
                        {{}, {}, {0, 0, 1}},
                        {{5}, {6, 5}, {0, 6, 0}},
                        {{0, 3}, {0, 3}, {0, 0, 0}}};
  Mesh mesh({3, 1, 1});
  mesh.run([&](MeshAxes axes) {
    for (const Case& each : cases) {
      const at::Tensor whole = normal(each.state, 5);
      const Part part{axes.dp, each.shares, each.parameter};
      EXPECT_TRUE(bitwise_equal(part.gather(part.of(whole).clone(), each.state), whole));
    }
  });
}

}  // namespace

}  // namespace torchdion::engine
