#include "engine/step.h"

#include <gtest/gtest.h>

#include "algorithms/textbook.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

// The textbook's step for one parameter of a group, on each of its matrices.
at::Tensor textbook_step(const Group& group, std::size_t i, MatrixForm form, bool right) {
  algorithms::Textbook textbook{matrix_view(group.X[i].contiguous(), form)->clone(),
                                matrix_view(group.states[kMomentum][i], form)->clone(), group.states[kQ][i].clone(),
                                group.options};
  textbook.step(*matrix_view(group.G[i].contiguous(), form), right ? Orientation::right : Orientation::left);
  return textbook.X;
}

struct DionCase {
  const char* name;
  DionParameter parameter;
  MatrixForm form;
  bool right = true;
};

class StepOfDion : public testing::TestWithParam<DionCase> {};

TEST_P(StepOfDion, UpdatesEveryMatrixOfTheParameterByTheTextbook) {
  const DionCase& c = GetParam();
  for (const char* strides : {"contiguous", "weight by columns", "gradient by columns", "gaps", "expanded gradient"}) {
    Groups groups;
    groups.all.push_back(dion_group({c.parameter}, c.form));
    at::Tensor &X = groups.all[0].X[0], &G = groups.all[0].G[0];
    const std::string how = strides;
    if (how == "weight by columns") X = column_major(X);
    if (how == "gradient by columns") G = column_major(G);
    if (how == "gaps") {
      std::vector<int64_t> spread = X.sizes().vec();
      spread.push_back(2);
      X = at::zeros(spread, X.options()).select(-1, 0).copy_(X);
      G = at::zeros(spread, X.options()).select(-1, 0).copy_(G);
    }
    if (how == "expanded gradient") G = G.select(0, 0).unsqueeze(0).expand(X.sizes());
    const at::Tensor start = X.clone(), expected = textbook_step(groups.all[0], 0, c.form, c.right);
    Step(groups, Nonfinite::propagate).run();
    const at::Tensor travelled = *matrix_view(X.contiguous(), c.form) - *matrix_view(start.contiguous(), c.form);
    EXPECT_LE(relative_error(travelled, expected - *matrix_view(start.contiguous(), c.form)), 1e-11) << strides;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, StepOfDion,
    testing::Values(DionCase{"Matrix", {{12, 20}, {12, 4}}, {}},
                    DionCase{"LoadedLeftQ", {{12, 20}, {20, 4}}, {}, false},
                    DionCase{"Convolution", {{12, 2, 5}, {12, 4}}, {}},
                    DionCase{"Blocks", {{12, 20}, {3, 4, 2}}, {.blocks = 3}},
                    DionCase{"Experts", {{3, 8, 10}, {3, 8, 2}}, {.batch_dims = 1}},
                    DionCase{"ExpertsOfBlocks", {{3, 8, 10}, {3, 2, 4, 2}}, {.batch_dims = 1, .blocks = 2}},
                    DionCase{"FanInFirst", {{12, 20}, {20, 4}}, {.fan_in_first = true}},
                    DionCase{"TransposedConvolution", {{12, 5, 4}, {20, 4}}, {.fan_in_first = true}},
                    DionCase{"OneRow", {{1, 20}, {1, 1}}, {}}, DionCase{"OneColumn", {{20, 1}, {20, 1}}, {}}),
    [](const auto& info) { return info.param.name; });

TEST(Step, UpdatesEveryParameterAsIfItWereAlone) {
  Groups together = all_groups(), alone = all_groups();
  Step(together, Nonfinite::propagate).run();
  for (const Group& group : alone.all) {
    for (std::size_t i = 0; i < group.X.size(); ++i) Step({{single(group, i)}}, Nonfinite::propagate).run();
  }
  const std::vector<at::Tensor*> a = tensors_of(together), b = tensors_of(alone);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LE(relative_error(*a[i], *b[i]), 1e-13) << "tensor " << i;
}

TEST(Step, DoesNotDependOnTheOrderOfTheParameters) {
  Groups forward, backward;
  const std::vector<DionParameter> parameters = {{{12, 20}, {12, 4}}, {{20, 12}, {12, 6}}, {{12, 20}, {12, 4}},
                                                 {{12, 20}, {20, 4}}, {{12, 20}, {12, 4}}, {{9, 9}, {9, 9}}};
  forward.all.push_back(dion_group(parameters));
  backward.all.push_back(dion_group(parameters));
  Group& reversed = backward.all[0];
  for (std::vector<at::Tensor>* list : lists_of(reversed)) std::reverse(list->begin(), list->end());
  Step(forward, Nonfinite::propagate).run();
  Step(backward, Nonfinite::propagate).run();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LE(relative_error(reversed.X[parameters.size() - 1 - i], forward.all[0].X[i]), 1e-14) << i;
  }
}

TEST(Step, CountsOneMoreStepForEveryParameterWhateverTheDtypeOfTheCount) {
  Groups groups = all_groups();
  groups.all[kMatrices].steps[1] = at::full({}, 41, at::kLong);
  groups.all[kUnderLion].steps[0] = at::full({}, 41, at::kDouble);
  const std::vector<at::Tensor> before = snapshot(groups);
  Step(groups, Nonfinite::propagate).run();
  const std::vector<at::Tensor*> now = tensors_of(groups);
  std::size_t counts = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    bool is_count = false;
    for (const Group& group : groups.all) {
      for (const at::Tensor& step : group.steps) is_count = is_count || step.is_same(*now[i]);
    }
    if (!is_count) continue;
    EXPECT_EQ(now[i]->item<double>(), before[i].item<double>() + 1);
    ++counts;
  }
  EXPECT_EQ(counts, 4 + 1 + 3 + 2);
}

TEST(Step, ReportsItsBatchesAndTheMemoryOfItsWorkspace) {
  Groups groups = all_groups();
  Step step(groups, Nonfinite::propagate);
  EXPECT_FALSE(step.wrote());
  const Report report = step.run();
  EXPECT_TRUE(step.wrote());
  EXPECT_EQ(report.batches, 3 + 1 + 1 + 1) << "three shapes of matrices, the experts, Lion, AdamW";
  EXPECT_EQ(step.completed(), step.batches());
  EXPECT_EQ(report.workspace_bytes, 2 * (12 + 20) * 4 * 8) << "P and R of the two 12×20 matrices at rank 4";
  EXPECT_FALSE(report.skipped);
}

TEST(Step, OfNothingDoesNothing) {
  const Report report = Step(Groups(), Nonfinite::propagate).run();
  EXPECT_EQ(report.batches, 0);
  EXPECT_EQ(report.workspace_bytes, 0);
}

TEST(Step, WritesParametersThatAutogradWatches) {
  Groups groups = all_groups();
  std::vector<int64_t> versions;
  for (at::Tensor& X : groups.all[kMatrices].X) {
    X.set_requires_grad(true);
    versions.push_back(X._version());
  }
  Step(groups, Nonfinite::propagate).run();
  for (std::size_t i = 0; i < versions.size(); ++i) {
    EXPECT_GT(groups.all[kMatrices].X[i]._version(), versions[i])
        << "a later backward() must see that its input has changed";
  }
}

TEST(Step, ReadsAndWritesNumbersThatAreNotWhatTheirMemoryHolds) {
  Groups groups = all_groups(), reference = all_groups();
  for (at::Tensor* X : {&groups.all[kMatrices].X[0], &groups.all[kUnderLion].X[0], &groups.all[kUnderAdamW].X[0]})
    *X = (-*X)._neg_view();
  for (at::Tensor* G : {&groups.all[kMatrices].G[0], &groups.all[kUnderLion].G[0], &groups.all[kUnderAdamW].G[0]})
    *G = (-*G)._neg_view();
  groups.all[kMatrices].G[1] = at::_efficientzerotensor({20, 12}, at::kDouble);
  reference.all[kMatrices].G[1].zero_();
  Step(groups, Nonfinite::propagate).run();
  Step(reference, Nonfinite::propagate).run();
  const std::vector<at::Tensor*> now = tensors_of(groups), expected = tensors_of(reference);
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(at::equal(now[i]->resolve_neg(), *expected[i])) << i;
}

TEST(Step, WritesThroughStridesOfElementwiseParameters) {
  Groups groups, reference;
  groups.all.push_back(elementwise_group("lion", {{6, 4}}));
  reference.all.push_back(elementwise_group("lion", {{6, 4}}));
  at::Tensor& X = groups.all[0].X[0];
  X = at::zeros({6, 8}, at::kDouble).slice(1, 0, 8, 2).copy_(X);
  groups.all[0].G[0] = column_major(groups.all[0].G[0]);
  Step(groups, Nonfinite::propagate).run();
  Step(reference, Nonfinite::propagate).run();
  EXPECT_TRUE(at::equal(X, reference.all[0].X[0]));
}

}  // namespace

}  // namespace torchdion::engine
