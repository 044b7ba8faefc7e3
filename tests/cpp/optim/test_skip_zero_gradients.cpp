// skip_zero_gradients: matrices without any gradient stay as they are, to the last bit; the others go on.
#include <gtest/gtest.h>

#include <limits>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::Mesh;
using comm::MeshAxes;

const DionOptions kSkips = DionOptions(0.1).rank_fraction(0.25).batch_dims(1).skip_zero_gradients(true);

at::Tensor start_of_stack() { return normal({3, 8, 10}, 1); }

// Of a replica: after the first step the second expert has none on any, the third none on the first, and the first one
// none in the pieces that some ranks have.
at::Tensor gradient_of_stack(int step, int replica) {
  const at::Tensor G = normal({3, 8, 10}, 10 + 2 * step + replica);
  if (step > 0) {
    G[0].slice(0, 0, 4).zero_();
    G[0].slice(1, 0, 5).zero_();
    G[1].zero_();
  }
  if (step > 0 && replica == 0) G[2].zero_();
  return G;
}

Dion skipping(const at::Tensor& stack, const DionOptions& options) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{stack}, std::make_unique<DionOptions>(options));
  return Dion(groups, options);
}

std::vector<at::Tensor> second_expert(Dion& optimizer, const at::Tensor& stack) {
  const ParamState& state = optimizer.state_of(stack);
  return Model::snapshot({stack[1], state.momentum()[1], state.Q()[1]});
}

// Four steps; the second expert keeps all it has from the second on.
template <class Gradient>
void train(Dion& optimizer, at::Tensor stack, const Gradient& gradient) {
  std::vector<at::Tensor> before;
  for (int step = 0; step < 4; ++step) {
    stack.mutable_grad() = gradient(step);
    optimizer.step();
    if (step > 0) expect_bitwise_equal(second_expert(optimizer, stack), before);
    before = second_expert(optimizer, stack);
  }
}

TEST(SkipZeroGradients, KeepsAMatrixWithoutAGradientAndUpdatesTheOthersAsEver) {
  for (Orientation orientation : {Orientation::right, Orientation::left}) {
    DionOptions options = kSkips, paper = kSkips;
    options.orientation(orientation);
    paper.orientation(orientation).skip_zero_gradients(false);
    const at::Tensor stack = start_of_stack().requires_grad_();
    at::Tensor other = start_of_stack().requires_grad_();
    Dion optimizer = skipping(stack, options), reference = skipping(other, paper);
    train(optimizer, stack, [&](int step) {
      other.mutable_grad() = gradient_of_stack(step, 1);
      reference.step();
      return gradient_of_stack(step, 1);
    });
    for (int expert : {0, 2}) {
      EXPECT_LE(travel_error(stack[expert].detach(), other[expert].detach(), start_of_stack()[expert]), 1e-12);
    }
    EXPECT_FALSE(bitwise_equal(stack[1].detach(), other[1].detach()));
  }
}

// FP16 holds momenta that a step with a gradient would round to zero.
TEST(SkipZeroGradients, KeepsMomentaThatAreNearlyZero) {
  const at::Tensor stack = start_of_stack().to(at::kHalf).requires_grad_();
  Dion optimizer = skipping(stack, kSkips);
  train(optimizer, stack, [&](int step) { return gradient_of_stack(step, 1).mul(1e-6).to(at::kHalf); });
  const at::Tensor kept = optimizer.state_of(stack).momentum()[1];
  EXPECT_GT(kept.ne(0).logical_and_(kept.abs().lt(0x1p-19)).sum().item<int64_t>(), 0);
}

TEST(SkipZeroGradients, TakesEntriesThatCountAsZeroForZero) {
  const auto with_nan = [](int step) {
    const at::Tensor G = gradient_of_stack(step, 1);
    if (step > 0) G[1][2][3] = std::numeric_limits<double>::quiet_NaN();
    return G;
  };
  const at::Tensor stack = start_of_stack().requires_grad_();
  Dion optimizer = skipping(stack, DionOptions(kSkips).nonfinite(Nonfinite::zero));
  train(optimizer, stack, with_nan);
  EXPECT_EQ(optimizer.stats().nonfinite_entries, 3);

  at::Tensor shown = start_of_stack().requires_grad_();
  Dion propagates = skipping(shown, kSkips);
  for (int step = 0; step < 2; ++step) {
    shown.mutable_grad() = with_nan(step);
    propagates.step();
  }
  EXPECT_TRUE(shown[1].isnan().any().item<bool>());
}

// Three experts over four ranks: the last has none of them, but two of the other stack.
TEST(SkipZeroGradients, TakesStacksOfWhichARankHasNothing) {
  const std::vector<int64_t> sizes[] = {{3, 8, 10}, {8, 8, 10}};
  Mesh({1, 4, 1}).run([&](MeshAxes axes) {
    std::vector<at::Tensor> stacks, pieces;
    for (const std::vector<int64_t>& of : sizes) {
      stacks.push_back(normal(of, 1).requires_grad_());
      pieces.push_back(piece_of(stacks.back(), {.batch = axes.fs}, 1).requires_grad_());
    }
    Dion whole(stacks, kSkips), cut(pieces, kSkips);
    for (std::size_t i = 0; i < 2; ++i) cut.set_layout(pieces[i], {.batch = axes.fs, .sizes = sizes[i]});
    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < 2; ++i) {
        stacks[i].mutable_grad() = normal(sizes[i], 10 + 2 * step + i);
        stacks[i].mutable_grad()[2].zero_();
        pieces[i].mutable_grad() = piece_of(stacks[i].grad(), {.batch = axes.fs}, 1);
      }
      whole.step();
      cut.step();
    }
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::allclose(pieces[i], piece_of(stacks[i], {.batch = axes.fs}, 1), 0, 1e-12));
      EXPECT_TRUE(bitwise_equal(stacks[i][2].detach(), normal(sizes[i], 1)[2]));
    }
  });
}

class SkipZeroGradientsOnRanks : public testing::TestWithParam<double> {};

TEST_P(SkipZeroGradientsOnRanks, AsksAllThatHaveAPieceOrACopy) {
  const DionOptions options = DionOptions(kSkips).rank_fraction(GetParam());
  at::Tensor alone = start_of_stack().requires_grad_();
  Dion reference = skipping(alone, options);
  train(reference, alone, [](int step) { return 0.5 * (gradient_of_stack(step, 0) + gradient_of_stack(step, 1)); });
  for (const bool by_columns : {false, true}) {
    Mesh({2, 2, 1}).run([&](MeshAxes axes) {
      Layout layout;
      (by_columns ? layout.cols : layout.rows) = axes.fs;
      layout.replicas = axes.dp;
      layout.sizes = {3, 8, 10};
      const at::Tensor stack = piece_of(start_of_stack(), layout, 1).requires_grad_();
      Dion optimizer = skipping(stack, options);
      optimizer.set_layout(stack, layout);
      train(optimizer, stack, [&](int step) { return piece_of(gradient_of_stack(step, axes.dp.rank), layout, 1); });
      const at::Tensor expected = piece_of(alone, layout, 1), from = piece_of(start_of_stack(), layout, 1);
      for (int expert : {0, 1, 2}) {
        EXPECT_LE(travel_error(stack[expert].detach(), expected[expert], from[expert]), 1e-9);
      }
    });
  }
}

// Of which replicas exchange P and R, and momenta.
INSTANTIATE_TEST_SUITE_P(RankFractions, SkipZeroGradientsOnRanks, testing::Values(0.25, 1.0));

}  // namespace

}  // namespace torchdion
