#include "engine/batches.h"

#include <gtest/gtest.h>

#include "comm/mesh_as_threads.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

using algorithms::Batch;

struct Made {
  Groups groups;
  Copies copies;
  std::vector<Batch> batches;

  explicit Made(Groups given) : groups(std::move(given)), batches(batches_of(plan_of(groups), groups, copies)) {}
};

Groups of(Group group, bool capturable = false) { return {{std::move(group)}, capturable}; }

TEST(Batches, GiveTheAlgorithmTheTransposesForTheRightOrientation) {
  const Made made(of(dion_group({{{12, 20}, {12, 4}}})));
  const Batch& batch = made.batches.at(0);
  EXPECT_EQ(batch.X.rows, 20);
  EXPECT_EQ(batch.shape.m, 20);
  EXPECT_EQ(batch.states[kMomentum].rows, 20);
  EXPECT_EQ(batch.states[kQ].rows, 12);
  EXPECT_DOUBLE_EQ(batch.factors.shape_factor, std::sqrt(12.0 / 20.0)) << "of X, not of its transpose";
}

TEST(Batches, TakeTheOrientationFromTheShapeOfQAndOfASquareOneFromTheOption) {
  for (const char* option : {"right", "left"}) {
    Group group = dion_group({{{12, 20}, {20, 4}}, {{15, 15}, {15, 4}}});
    group.options.set("orientation", std::string_view(option));
    for (const Batch& batch : Made(of(group)).batches) {
      const bool transposed = batch.X.rows == 15 ? batch.X.row_stride == 1 : batch.X.rows == 20;
      EXPECT_EQ(transposed, batch.X.rows == 15 && option == std::string_view("right"));
    }
  }
}

TEST(Batches, HoldTheMatricesOfTheirParametersInTheirOrder) {
  Group group = dion_group({{{12, 20}, {12, 4}}, {{9, 9}, {9, 9}}, {{12, 20}, {12, 4}}});
  const Made made(of(group));
  ASSERT_EQ(made.batches.size(), 2u);
  const Batch& batch = made.batches[0];
  for (std::size_t k = 0; k < 2; ++k) {
    const std::size_t i = 2 * k;
    EXPECT_EQ(batch.X.data[k], group.X[i].data_ptr()) << k;
    EXPECT_EQ(batch.G.data[k], group.G[i].data_ptr()) << k;
    EXPECT_EQ(batch.states[kMomentum].data[k], group.states[kMomentum][i].data_ptr()) << k;
    EXPECT_EQ(batch.states[kQ].data[k], group.states[kQ][i].data_ptr()) << k;
  }
  EXPECT_EQ(made.batches[1].X.data[0], group.X[1].data_ptr());
}

// Of a stack that is cut into several tasks.
TEST(Batches, HoldTheMatricesThatThePlanSaysAndWhatBelongsToThem) {
  Group group = dion_group({{{60, 300, 200}, {60, 300, 100}}}, {.batch_dims = 1});
  group.unchanged = {at::arange(60, at::kFloat)};
  Made made(of(group));
  int64_t next = 0;
  for (const Batch& batch : made.batches) {
    ASSERT_EQ(batch.X.count(), batch.shape.count);
    ASSERT_EQ(batch.marks.size(), batch.X.data.size());
    for (std::size_t i = 0; i < batch.X.data.size(); ++i, ++next) {
      EXPECT_EQ(batch.X.data[i], group.X[0][next].data_ptr());
      EXPECT_EQ(batch.states[kQ].data[i], group.states[kQ][0][next].data_ptr());
      EXPECT_EQ(batch.marks[i].item<float>(), static_cast<float>(next));
    }
  }
  EXPECT_EQ(next, 60);
  EXPECT_GT(made.batches.size(), 1u);
}

TEST(Batches, OfElementsHoldEachTensorWithItsOwnCountOfSteps) {
  Group group = elementwise_group("adamw", {{7}, {3, 4}});
  group.steps[1].fill_(41);
  const Made host(of(group)), device(of(group, /*capturable=*/true));
  const linalg::ElementwiseLists& lists = host.batches.at(0).lists;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(lists.X[i].is_same(group.X[i])) << i;
    EXPECT_TRUE(lists.G[i].is_same(group.G[i])) << i;
    EXPECT_TRUE(lists.states[kMomentum][i].is_same(group.states[kMomentum][i])) << i;
    EXPECT_TRUE(lists.states[kVariance][i].is_same(group.states[kVariance][i])) << i;
    EXPECT_EQ(device.batches.at(0).lists.device_step[i], group.steps[i].const_data_ptr<float>());
  }
  EXPECT_EQ(lists.step, (std::vector<int64_t>{1, 42}));
  EXPECT_TRUE(device.batches[0].lists.step.empty()) << "nothing that the host has counted";
}

TEST(Batches, OfElementsThatReplicasAverageReadTheMeanInThePlaceOfTheirGradients) {
  comm::Mesh({2, 1, 1}).run([](comm::MeshAxes axes) {
    Group group = elementwise_group("lion", {{7}, {3, 4}});
    group.layouts.resize(2, {.replicas = axes.dp});
    const Made made(of(group));
    const Batch& batch = made.batches.at(0);
    EXPECT_EQ(batch.mean.numel(), 7 + 12);
    EXPECT_TRUE(batch.own[1].is_same(group.G[1]));
    EXPECT_EQ(batch.lists.G[1].const_data_ptr<double>(), batch.mean.const_data_ptr<double>() + 7);
  });
}

// Copies of a matrix elsewhere stay equal to the last bit where sums are added in the order of ranks.
TEST(Batches, SumInTheOrderOfRanksWhereThereAreCopies) {
  comm::Mesh({2, 2, 1}).run([](comm::MeshAxes axes) {
    for (const bool averaged : {false, true}) {
      Group group = dion_group({{{6, 20}, {6, 4}}});
      group.whole_factors = {{{12, 4}}};
      group.layouts = {{.rows = axes.fs, .sizes = {12, 20}, .has_averaged_copies = averaged}};
      EXPECT_EQ(Made(of(group)).batches.at(0).order, averaged ? comm::Order::fixed : comm::Order::any);
      group.layouts[0].has_averaged_copies = false;
      group.layouts[0].replicas = axes.dp;
      EXPECT_EQ(Made(of(group)).batches.at(0).order, comm::Order::fixed);
    }
  });
}

TEST(Copies, OfAContiguousTensorToWriteIsTheTensor) {
  Copies copies;
  const at::Tensor tensor = normal({3, 4}, 1);
  EXPECT_TRUE(copies.writable(tensor).is_same(tensor));
}

TEST(Copies, AreWrittenBackWhenAskedAndNotBefore) {
  Copies copies;
  const at::Tensor wide = at::zeros({3, 8}), view = wide.slice(1, 0, 8, 2);
  copies.writable(view).fill_(1);
  copies.readable(view).fill_(2);
  EXPECT_EQ(wide.sum().item<double>(), 0);
  copies.write_back();
  EXPECT_TRUE(at::equal(view, at::ones({3, 4})));
  EXPECT_EQ(wide.sum().item<double>(), 12) << "what lies between must stay";
}

}  // namespace

}  // namespace torchdion::engine
