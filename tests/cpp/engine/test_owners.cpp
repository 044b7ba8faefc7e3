#include "engine/owners.h"

#include <gtest/gtest.h>

#include "comm/mesh_as_threads.h"
#include "comm/sums.h"
#include "engine/plan.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

// Each rank of a line is asked to own as many of all matrices, but for one.
TEST(Owners, OfOneBatchFollowThoseOfTheOneBefore) {
  comm::Mesh({1, 3, 1}).run([](comm::MeshAxes axes) {
    const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
    Group group = dion_group({});
    for (const int64_t n : {20, 20, 24, 24}) {
      group.X.push_back(at::zeros({4, n}, meta));
      group.G.push_back(group.X.back());
      group.states[kMomentum].push_back(group.X.back());
      group.states[kQ].push_back(at::zeros({n, 1}, meta));
      group.whole_factors.push_back({n, 3});
      group.steps.push_back(at::zeros({}));
      group.layouts.push_back({.rows = axes.fs, .sizes = {12, n}});
    }
    group.options.set("orientation", std::string_view("left"));
    // Left factors of cut rows: no rank has whole columns of P, and nobody owns a matrix.
    for (const PlannedBatch& batch : plan_of({{group}}).batches) EXPECT_EQ(batch.shape.assigned.cols, 0);
    group.options.set("orientation", std::string_view("right"));
    for (std::size_t i = 0; i < 4; ++i) {
      group.states[kQ][i] = at::zeros({4, 3}, meta);
      group.whole_factors[i] = {12, 3};
    }
    const Plan plan = plan_of({{group}});
    ASSERT_EQ(plan.batches.size(), 2u);
    EXPECT_EQ(plan.batches[0].shape.assigned.cols, 0);
    EXPECT_EQ(plan.batches[1].shape.assigned.cols, 2);
    int64_t own = 0;
    for (const PlannedBatch& batch : plan.batches) {
      own += comm::share_of(batch.shape.count, axes.fs.rank, 3, batch.shape.assigned.cols);
    }
    EXPECT_EQ(own, axes.fs.rank == 0 ? 2 : 1);
  });
}

}  // namespace

}  // namespace torchdion::engine
