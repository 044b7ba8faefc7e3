#include "engine/batches.h"

#include <gtest/gtest.h>

#include "tensors.h"

namespace torchdion::engine {

namespace {

struct Parameter {
  std::vector<int64_t> sizes, q_sizes;
  at::ScalarType dtype = at::kFloat;
  int64_t step = 0;
};

DionGroup group_of(const std::vector<Parameter>& parameters) {
  DionGroup group;
  for (const Parameter& p : parameters) {
    group.X.push_back(normal(p.sizes, 1, p.dtype));
    group.G.push_back(normal(p.sizes, 2, p.dtype));
    group.M.push_back(at::zeros(p.sizes, p.dtype));
    group.Q.push_back(normal(p.q_sizes, 3, p.dtype));
    group.steps.push_back(at::full({}, static_cast<double>(p.step), at::kFloat));
  }
  return group;
}

struct Sorted {
  std::size_t batches;
  int64_t matrices = 0;
};

Sorted sort(const DionGroup& group) {
  Copies copies;
  Sorted sorted{};
  for (const algorithms::DionBatch& batch : dion_batches(group, /*capturable=*/false, copies)) {
    ++sorted.batches;
    sorted.matrices += batch.X.count();
  }
  return sorted;
}

TEST(Batches, HoldMatricesAlikeInShapeDtypeRankAndOrientation) {
  const Parameter plain{{12, 20}, {12, 4}};
  EXPECT_EQ(sort(group_of({plain, plain, plain})).batches, 1);
  for (const Parameter& other : {Parameter{{20, 12}, {20, 4}}, Parameter{{12, 20}, {12, 5}},
                                 Parameter{{12, 20}, {20, 4}}, Parameter{{12, 20}, {12, 4}, at::kDouble}}) {
    const Sorted sorted = sort(group_of({plain, other, plain}));
    EXPECT_EQ(sorted.batches, 2);
    EXPECT_EQ(sorted.matrices, 3);
  }
}

TEST(Batches, HoldMatricesAlikeInStrides) {
  DionGroup group = group_of({{{12, 20}, {12, 4}}, {{12, 20}, {12, 4}}});
  group.G[1] = column_major(group.G[1]);
  EXPECT_EQ(sort(group).batches, 2);
}

TEST(Batches, HoldOneStepOnlyWhereASketchIsKeyedByIt) {
  DionGroup group = group_of({{{12, 20}, {12, 4}}, {{12, 20}, {12, 4}, at::kFloat, 5}});
  EXPECT_EQ(sort(group).batches, 1);
  group.hyper.orthonormalize = Orthonormalize::rcqr;
  EXPECT_EQ(sort(group).batches, 2);
}

TEST(Batches, LeaveOutParametersWithoutElements) {
  const Sorted sorted = sort(group_of({{{0, 20}, {0, 0}}, {{12, 20}, {12, 4}}, {{12, 0}, {12, 0}}}));
  EXPECT_EQ(sorted.batches, 1);
  EXPECT_EQ(sorted.matrices, 1);
}

TEST(Batches, AreCutSoThatTheWorkspaceStaysWithinAMillionElements) {
  DionGroup group = group_of({{{60, 300, 200}, {60, 300, 100}}});
  group.form.batch_dims = 1;
  Copies copies;
  int64_t matrices = 0;
  for (const algorithms::DionBatch& batch : dion_batches(group, /*capturable=*/false, copies)) {
    EXPECT_LE(algorithms::dion_workspace(batch), 1 << 20);
    matrices += batch.X.count();
  }
  EXPECT_EQ(matrices, 60);
}

TEST(Batches, GiveTheAlgorithmTheTransposesForTheRightOrientation) {
  const DionGroup group = group_of({{{12, 20}, {12, 4}}});
  Copies copies;
  const algorithms::DionBatch batch = dion_batches(group, /*capturable=*/false, copies).at(0);
  EXPECT_EQ(batch.X.rows, 20);
  EXPECT_EQ(batch.global_rows, 20);
  EXPECT_EQ(batch.Q.rows, 12);
  EXPECT_DOUBLE_EQ(batch.shape_factor, std::sqrt(12.0 / 20.0)) << "of X, not of its transpose";
}

TEST(Batches, TakeTheOrientationFromTheShapeOfQAndOfASquareOneFromTheOption) {
  for (Orientation option : {Orientation::right, Orientation::left}) {
    DionGroup group = group_of({{{12, 20}, {20, 4}}, {{15, 15}, {15, 4}}});
    group.orientation = option;
    Copies copies;
    for (const algorithms::DionBatch& batch : dion_batches(group, /*capturable=*/false, copies)) {
      const bool transposed = batch.X.rows == 15 ? batch.X.row_stride == 1 : batch.X.rows == 20;
      EXPECT_EQ(transposed, batch.X.rows == 15 && option == Orientation::right);
    }
  }
}

struct Refusal {
  const char* name;
  void (*spoil)(DionGroup&);
  const char* words;
};

class BatchesRefuse : public testing::TestWithParam<Refusal> {};

TEST_P(BatchesRefuse, WithOneSentenceThatSaysWhatIsWrong) {
  DionGroup group = group_of({{{12, 20}, {12, 4}}, {{12, 20}, {12, 4}}});
  GetParam().spoil(group);
  Copies copies;
  try {
    dion_batches(group, /*capturable=*/false, copies);
    FAIL() << "accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find(GetParam().words), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    WhatDoesNotFit, BatchesRefuse,
    testing::Values(
        Refusal{"Gradient",
                [](DionGroup& g) {
                  g.G[1] = at::zeros({20, 12});
                },
                "the gradient of a parameter of shape [12, 20] must have that shape, got [20, 12]"},
        Refusal{"Momentum",
                [](DionGroup& g) {
                  g.M[1] = at::zeros({12, 21});
                },
                "must have that shape, got [12, 21]"},
        Refusal{"MomentumByColumns", [](DionGroup& g) { g.M[1] = column_major(g.M[1]); }, "must be contiguous"},
        Refusal{"QByColumns", [](DionGroup& g) { g.Q[1] = column_major(g.Q[1]); },
                "the state Q of a parameter of shape [12, 20] must be contiguous"},
        Refusal{"NegativeMomentum", [](DionGroup& g) { g.M[1] = at::_neg_view(g.M[1]); },
                "the state momentum of a parameter of shape [12, 20] must not be a negative view"},
        Refusal{"NegativeQ", [](DionGroup& g) { g.Q[1] = at::_neg_view(g.Q[1]); }, "must not be a negative view"},
        Refusal{"QOfOtherRows",
                [](DionGroup& g) {
                  g.Q[1] = at::zeros({13, 4});
                },
                "12×r or 20×r"},
        Refusal{"QTooWide",
                [](DionGroup& g) {
                  g.Q[1] = at::zeros({20, 13});
                },
                "1 ≤ r ≤ 12, got 20×13"},
        Refusal{"QWithoutColumns",
                [](DionGroup& g) {
                  g.Q[1] = at::zeros({12, 0});
                },
                "1 ≤ r ≤ 12, got 12×0"},
        Refusal{"QOfAStack",
                [](DionGroup& g) {
                  g.Q[1] = at::zeros({2, 12, 4});
                },
                "one matrix for each of []"},
        Refusal{"Integers", [](DionGroup& g) { g.G[1] = g.G[1].to(at::kInt); }, "dense floating-point tensor on cpu"},
        Refusal{"Sparse", [](DionGroup& g) { g.G[1] = g.G[1].to_sparse(); }, "dense floating-point tensor on cpu"}),
    [](const auto& info) { return info.param.name; });

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
