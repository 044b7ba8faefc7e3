#include "engine/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "algorithms/whole_matrices.h"
#include "comm/mesh_as_threads.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

Alike matrices_of(int64_t count, int64_t operations, std::vector<Axis> axes, Axis batch = {}) {
  Alike alike;
  alike.shape.count = count;
  alike.owned = {std::move(axes), operations};
  alike.layout.batch = std::move(batch);
  return alike;
}

// What each rank of the axes has to do for all of these.
std::vector<int64_t> loads_of(const std::vector<Alike>& all) {
  std::vector<int64_t> loads(ranks_of(all.front().owned.axes));
  for (const Alike& alike : all) {
    for (const int64_t owner : alike.owners) loads[owner] += alike.owned.operations;
  }
  return loads;
}

TEST(Owners, TakeTheCostliestMatricesFirst) {
  comm::Mesh({1, 3, 1}).run([](comm::MeshAxes axes) {
    std::vector<Alike> all{matrices_of(3, 2, {axes.fs}), matrices_of(1, 9, {axes.fs}), matrices_of(2, 4, {axes.fs})};
    assign_owners(all);
    EXPECT_EQ(all[1].owners, (std::vector<int64_t>{0}));
    EXPECT_EQ(all[2].owners, (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(all[0].owners, (std::vector<int64_t>{1, 2, 1}));
    EXPECT_EQ(loads_of(all), (std::vector<int64_t>{9, 8, 6}));
  });
}

TEST(Owners, OfFewMatricesOfManyKindsAreAllRanksInTurn) {
  comm::Mesh({2, 2, 2}).run([](comm::MeshAxes axes) {
    std::vector<Alike> all;
    for (int i = 0; i < 8; ++i) all.push_back(matrices_of(1, 5, {axes.dp, axes.fs, axes.tp}));
    assign_owners(all);
    EXPECT_EQ(loads_of(all), std::vector<int64_t>(8, 5));
  });
}

TEST(Owners, OfMatricesThatTheSameAxesCutOtherwiseCountTogether) {
  comm::Mesh({1, 2, 3}).run([](comm::MeshAxes axes) {
    std::vector<Alike> all{matrices_of(1, 7, {axes.fs, axes.tp}), matrices_of(5, 7, {axes.tp, axes.fs})};
    assign_owners(all);
    std::vector<int64_t> loads(6);
    ++loads[all[0].owners[0]];
    for (const int64_t owner : all[1].owners) ++loads[owner % 2 * 3 + owner / 2];
    EXPECT_EQ(loads, std::vector<int64_t>(6, 1));
  });
}

TEST(Owners, OfStacksThatAreCutDoNotDependOnHowManyOthersHave) {
  comm::Mesh({1, 2, 2}).run([](comm::MeshAxes axes) {
    const int64_t experts = axes.tp.rank == 0 ? 3 : 0;
    std::vector<Alike> all{matrices_of(experts, 9, {axes.fs}, axes.tp), matrices_of(3, 1, {axes.fs})};
    assign_owners(all);
    EXPECT_EQ(all[1].owners, (std::vector<int64_t>{1, 0, 1}));  // another rank begins
  });
}

TEST(Owners, AreAmongCopiesAsAmongThoseWhoHavePieces) {
  comm::Mesh({2, 3, 1}).run([](comm::MeshAxes axes) {
    const Layout cut{.rows = axes.fs, .copies = axes.dp}, whole{.copies = axes.fs};
    std::vector<Alike> all{matrices_of(7, 4, algorithms::axes_of_owners(cut)),
                           matrices_of(4, 9, algorithms::axes_of_owners(whole))};
    assign_owners(all);
    std::vector<int64_t> loads = loads_of({all[0]}), of_whole = loads_of({all[1]});
    std::sort(loads.begin(), loads.end());
    std::sort(of_whole.begin(), of_whole.end());
    EXPECT_EQ(loads, (std::vector<int64_t>{4, 4, 4, 4, 4, 8}));
    EXPECT_EQ(of_whole, (std::vector<int64_t>{9, 9, 18}));
  });
}

TEST(Owners, OfABatchAreCountedAxisByAxis) {
  comm::Mesh({2, 3, 1}).run([](comm::MeshAxes axes) {
    Alike alike = matrices_of(5, 1, {axes.dp, Axis(), axes.fs});
    alike.owners = {0, 5, 3, 1, 4};  // dp · 3 + fs
    const auto owners = owners_of(alike, 0, 5);
    EXPECT_EQ(owners[0], (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(owners[1], (std::vector<int64_t>{axes.dp.rank == 0 ? 2 : 3}));
    EXPECT_EQ(owners[2], axes.dp.rank == 0 ? (std::vector<int64_t>{1, 1, 0}) : (std::vector<int64_t>{1, 1, 1}));
    EXPECT_EQ(owners_of(alike, 1, 3)[0], (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(one_for_each(alike.owned.axes), (std::vector<std::vector<int64_t>>{{3, 3}, {3}, {1, 1, 1}}));
  });
}

TEST(Owners, OfDionAreThoseWhoHaveWholeColumnsOfP) {
  comm::Mesh({1, 3, 1}).run([](comm::MeshAxes axes) {
    const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
    Group group = dion_group({});
    for (const int64_t n : {20, 20, 24, 24}) {
      group.X.push_back(at::zeros({4, n}, meta));
      group.G.push_back(group.X.back());
      group.states[kMomentum].push_back(group.X.back());
      group.states[kQ].push_back(at::zeros({n, 1}, meta));
      group.whole_factors.resize(1);
      group.whole_factors[0].push_back({n, 3});
      group.steps.push_back(at::zeros({}));
      group.layouts.push_back({.rows = axes.fs, .sizes = {12, n}});
    }
    group.options.set("orientation", std::string_view("left"));
    for (const PlannedBatch& batch : plan_of({{group}}).batches) EXPECT_TRUE(batch.shape.owners.empty());
    group.options.set("orientation", std::string_view("right"));
    for (std::size_t i = 0; i < 4; ++i) {
      group.states[kQ][i] = at::zeros({4, 3}, meta);
      group.whole_factors[0][i] = {12, 3};
    }
    int64_t own = 0;
    for (const PlannedBatch& batch : plan_of({{group}}).batches) {
      ASSERT_EQ(batch.shape.owners.size(), 2u);
      EXPECT_EQ(std::accumulate(batch.shape.owners[0].begin(), batch.shape.owners[0].end(), int64_t{0}), 2);
      own += batch.shape.owners[0][axes.fs.rank];
    }
    EXPECT_EQ(own, axes.fs.rank == 2 ? 2 : 1);  // who has no larger one
  });
}

}  // namespace

}  // namespace torchdion::engine
