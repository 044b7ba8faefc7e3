#include "engine/gradients.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "comm/mesh_as_threads.h"
#include "sentences.h"
#include "tensors.h"

namespace torchdion::engine {

namespace {

using comm::Mesh;
using comm::MeshAxes;

// Of two ranks the second alone has two entries that are not finite.
std::vector<at::Tensor> gradients_of(int rank) {
  std::vector<at::Tensor> gradients = {normal({3, 4}, 1), normal({5}, 2).to(at::kFloat)};
  if (rank == 1) {
    gradients[0][1][2] = std::numeric_limits<double>::quiet_NaN();
    gradients[1][4] = -std::numeric_limits<double>::infinity();
  }
  return gradients;
}

TEST(Decide, OneRankWithoutFiniteGradientsLeavesTheStepOutOnAll) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const Decision decision = decide({Nonfinite::skip_step}, gradients_of(axes.rank), {axes.fs});
    EXPECT_TRUE(decision.left_out);
    EXPECT_EQ(decision.nonfinite, 2 * axes.rank) << "each counts its own";
    EXPECT_FALSE(decide({Nonfinite::skip_step}, gradients_of(0), {axes.fs}).left_out);
  });
}

TEST(Decide, RaisesOnAllRanks) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const std::string who = axes.rank == 0 ? "torchdion: another rank's" : "torchdion: 2";
    EXPECT_EQ(sentence_of<c10::ValueError>([&] { decide({Nonfinite::raise}, gradients_of(axes.rank), {axes.fs}); }),
              who + " gradient entries are NaN or infinite (nonfinite(Nonfinite::raise))");
  });
}

TEST(Decide, LooksAtNoGradientWhereThePolicyNeedsNone) {
  Mesh mesh({1, 2, 1});
  mesh.run([](MeshAxes axes) {
    for (const Nonfinite policy : {Nonfinite::propagate, Nonfinite::zero}) {
      EXPECT_FALSE(NonfinitePolicy{policy}.may_leave_out());
      const Decision decision = decide({policy}, gradients_of(axes.rank), {axes.fs});
      EXPECT_FALSE(decision.left_out);
      EXPECT_EQ(decision.nonfinite, 0);
    }
  });
  EXPECT_EQ(mesh.calls(0, 1), 0) << "and asks no rank";
}

TEST(Decide, AnOverflowThatOneScalerFoundLeavesTheStepOutOnAllWhateverThePolicy) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const at::Tensor found_inf = at::full({}, axes.rank);
    for (const Nonfinite policy : {Nonfinite::propagate, Nonfinite::zero, Nonfinite::raise, Nonfinite::skip_step}) {
      EXPECT_TRUE(decide({policy, found_inf}, gradients_of(0), {axes.fs}).left_out);
    }
  });
}

// The CPU stands for two devices.
TEST(DecideOnDevices, WritesTheSameDecisionIntoATensorOfEachDevice) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const std::vector<at::Tensor> left_out = {at::full({1}, -1.0f), at::full({1}, -2.0f)};
    const auto decided = [&](const NonfinitePolicy& policy, int rank) {
      decide_on_devices(policy, gradients_of(rank), {axes.fs}, left_out);
      EXPECT_EQ(left_out[1].item<float>(), left_out[0].item<float>());
      return left_out[0].item<float>();
    };
    EXPECT_EQ(decided({Nonfinite::skip_step}, axes.rank), 1);
    EXPECT_EQ(decided({Nonfinite::skip_step}, 0), 0);
    EXPECT_EQ(decided({Nonfinite::propagate}, axes.rank), 0);
    EXPECT_EQ(decided({Nonfinite::propagate, at::full({}, 3.0f * axes.rank)}, 0), 1);
    const std::vector<at::Tensor> counts =
        decide_on_devices({Nonfinite::skip_step}, gradients_of(axes.rank), {axes.fs}, left_out);
    ASSERT_EQ(counts.size(), 2u);
    for (const at::Tensor& count : counts) EXPECT_EQ(count.item<int64_t>(), 2 * axes.rank);
  });
}

}  // namespace

}  // namespace torchdion::engine
