// The law: whatever the layout, the step is that of one process.
#include <gtest/gtest.h>

#include <limits>

#include "comm/mesh_as_threads.h"
#include "engine/state.h"
#include "engine/step.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

using comm::Mesh;
using comm::MeshAxes;
using comm::MeshShape;

constexpr int kSteps = 4;
constexpr double kRankFraction = 0.4;

struct Shape {
  int64_t m, n;
};

// What a rank does to each matrix.
enum class Cut { fs_rows_tp_cols, tp_rows_fs_cols };

struct Case {
  MeshShape mesh;
  const char* orientation;
  Cut cut;
  const char* method;
};

// Two of a shape and others, one of them with fewer rows than eight ranks; stacks of experts; vectors.
const std::vector<Shape> kShapes = {{24, 16}, {13, 17}, {24, 16}, {5, 40}, {40, 3}};

Layout layout_on(const MeshAxes& axes, Cut cut, std::vector<int64_t> sizes) {
  Layout layout;
  layout.rows = cut == Cut::fs_rows_tp_cols ? axes.fs : axes.tp;
  layout.cols = cut == Cut::fs_rows_tp_cols ? axes.tp : axes.fs;
  layout.replicas = axes.dp;
  layout.sizes = std::move(sizes);
  return layout;
}

at::Tensor piece_of(const at::Tensor& whole, const Layout& layout) {
  const Piece rows = layout.rows.piece(whole.size(0)), cols = layout.cols.piece(whole.size(1));
  return whole.slice(0, rows.begin, rows.end()).slice(1, cols.begin, cols.end()).contiguous().clone();
}

at::Tensor weight(std::size_t i) { return normal({kShapes[i].m, kShapes[i].n}, 100 + i); }
at::Tensor gradient(std::size_t i, int step, int replica) {
  return normal({kShapes[i].m, kShapes[i].n}, 1000 + 100 * step + 10 * replica + i);
}
at::Tensor vector_gradient(int step, int replica) { return normal({11}, 50 + 10 * step + replica); }

algorithms::Options options_of(const Case& c, double rank_fraction) {
  return algorithms::options_of(algorithms::algorithm("dion"), {{"lr", 0.1},
                                                                {"mu", 0.9},
                                                                {"weight_decay", 0.1},
                                                                {"orthonormalize", std::string_view(c.method)},
                                                                {"orientation", std::string_view(c.orientation)},
                                                                {"rank_fraction", rank_fraction},
                                                                {"seed", 3}});
}

// An optimizer of all the matrices and one vector, on one rank of a mesh or, with absent axes, on the whole.
class Training {
 public:
  Training(const Case& c, const MeshAxes& axes, double rank_fraction) : replica_(axes.dp.rank), replicas_(c.mesh.dp) {
    Group dion = group_under("dion");
    dion.options = options_of(c, rank_fraction);
    dion.states.resize(2);
    const std::span<const algorithms::State> states = dion.algorithm->states;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const Layout layout = layout_on(axes, c.cut, {kShapes[i].m, kShapes[i].n});
      dion.layouts.push_back(layout);
      dion.X.push_back(piece_of(weight(i), layout));
      for (std::size_t k = 0; k < 2; ++k) {
        dion.states[k].push_back(start_of(states[k], layout.sizes, dion.X[i].sizes(), dion.options,
                                          static_cast<int64_t>(i), at::kDouble, layout));
      }
      dion.whole_factors.resize(1);
      dion.whole_factors[0].push_back(whole_state_sizes(states[kQ], layout.sizes, dion.options));
      dion.steps.push_back(at::zeros({}));
    }
    groups.all.push_back(dion);
    Group lion = group_under("lion");
    lion.X.push_back(normal({11}, 7));
    lion.states = {{at::zeros({11}, at::kDouble)}};
    lion.steps.push_back(at::zeros({}));
    lion.layouts.push_back({});
    lion.layouts[0].replicas = axes.dp;
    groups.all.push_back(lion);
  }

  // `whole`: the mean of all replicas' gradients, else this one's own.
  Report step(int number, bool whole) {
    give_gradients(number, whole);
    return Step(groups, Nonfinite::propagate).run();
  }

  void give_gradients(int number, bool whole) {
    Group& dion = groups.all[0];
    dion.G.clear();
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      at::Tensor G = at::zeros({kShapes[i].m, kShapes[i].n}, at::kDouble);
      for (int d = 0; d < replicas_; ++d) {
        if (whole || d == replica_) G.add_(gradient(i, number, d), whole ? 1.0 / replicas_ : 1);
      }
      dion.G.push_back(piece_of(G, dion.layouts[i]));
    }
    at::Tensor g = at::zeros({11}, at::kDouble);
    for (int d = 0; d < replicas_; ++d) {
      if (whole || d == replica_) g.add_(vector_gradient(number, d), whole ? 1.0 / replicas_ : 1);
    }
    groups.all[1].G = {g};
  }

  Groups groups;

 private:
  int replica_, replicas_;
};

class Layouts : public testing::TestWithParam<Case> {};

void expect_the_law(const Case& c, double rank_fraction) {
  Training expected(c, {}, rank_fraction);
  for (int step = 0; step < kSteps; ++step) expected.step(step, true);
  Mesh mesh(c.mesh);
  std::mutex mutex;
  std::map<int, std::vector<at::Tensor>> by_place;  // X and Q of the replicas of a place
  mesh.run([&](MeshAxes axes) {
    Training training(c, axes, rank_fraction);
    for (int step = 0; step < kSteps; ++step) training.step(step, false);
    const Group &dion = training.groups.all[0], &whole = expected.groups.all[0];
    const std::lock_guard lock(mutex);
    std::vector<at::Tensor> result = dion.X;
    result.insert(result.end(), dion.states[kQ].begin(), dion.states[kQ].end());
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const Layout& layout = dion.layouts[i];
      if (dion.X[i].numel() == 0) continue;
      EXPECT_LE(travel_error(dion.X[i], piece_of(whole.X[i], layout), piece_of(weight(i), layout)), 1e-11)
          << "matrix " << i << " on rank " << axes.rank;
      if (c.mesh.dp == 1) {
        EXPECT_LE(relative_error(dion.states[kMomentum][i], piece_of(whole.states[kMomentum][i], layout)), 1e-11);
      }
    }
    EXPECT_LE(relative_error(training.groups.all[1].X[0], expected.groups.all[1].X[0]), 1e-14);
    result.push_back(training.groups.all[1].X[0]);
    const auto [place, is_first] = by_place.emplace(axes.rank % (c.mesh.fs * c.mesh.tp), result);
    for (std::size_t i = 0; !is_first && i < result.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(result[i], place->second[i])) << "tensor " << i << " of rank " << axes.rank;
    }
  });
}

TEST_P(Layouts, TakeTheStepsOfOneProcess) { expect_the_law(GetParam(), kRankFraction); }
TEST_P(Layouts, TakeTheStepsOfOneProcessAtFullRankWhereReplicasExchangeMomenta) { expect_the_law(GetParam(), 1); }

class Traffic : public testing::TestWithParam<Case> {};

TEST_P(Traffic, IsWhatTheFormulaAndTheBackendSay) {
  for (const double rank_fraction : {kRankFraction, 1.0}) {
    Mesh mesh(GetParam().mesh);
    mesh.run([&](MeshAxes axes) {
      Training training(GetParam(), axes, rank_fraction);
      const std::map<std::string, int64_t> expected = training.step(0, false).expected_traffic;
      for (const Axis& axis : {axes.dp, axes.fs, axes.tp}) {
        if (axis.absent()) continue;
        EXPECT_GT(axis.traffic().elements(), 0) << axis.name();
        EXPECT_EQ(axis.traffic().elements(), expected.at(axis.name())) << axis.name() << " of rank " << axes.rank;
      }
      int dim = 0;
      for (const Axis& axis : {axes.dp, axes.fs, axes.tp}) {
        const AxisTraffic counted = axis.traffic();
        EXPECT_EQ(counted.completion.elements, 0);  // its reduce-scatter has counted them
        EXPECT_EQ(counted.bytes(), mesh.sent_bytes(axes.rank, dim)) << axis.name() << " of rank " << axes.rank;
        EXPECT_EQ(counted.all_reduce.calls + counted.reduce_scatter.calls, mesh.calls_that_sum(axes.rank, dim));
        ++dim;
      }
    });
  }
}

const Case kCube{{2, 2, 2}, "right", Cut::fs_rows_tp_cols, "auto"};

TEST(RanksThatDisagree, AllLeaveOutAStepInWhichOneHasANaN) {
  Mesh mesh(kCube.mesh);
  mesh.run([&](MeshAxes axes) {
    Training training(kCube, axes, kRankFraction);
    training.give_gradients(0, false);
    if (axes.rank == 5) training.groups.all[0].G[0][0][0] = std::numeric_limits<double>::quiet_NaN();
    const Report report = Step(training.groups, Nonfinite::skip_step).run();
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(report.nonfinite.total(), axes.rank == 5);
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(training.groups.all[0].X[i], piece_of(weight(i), training.groups.all[0].layouts[i])));
    }
  });
}

TEST(RanksThatDisagree, AllRefuseGradientsOfWhichOneHasANaN) {
  Mesh mesh(kCube.mesh);
  mesh.run([&](MeshAxes axes) {
    Training training(kCube, axes, kRankFraction);
    training.give_gradients(0, false);
    if (axes.rank == 2) training.groups.all[1].G[0][3] = std::numeric_limits<double>::infinity();
    Step step(training.groups, Nonfinite::raise);
    EXPECT_THROW(step.run(), c10::ValueError);
    EXPECT_FALSE(step.wrote());
  });
}

TEST(RanksThatDisagree, AllLeaveOutAStepWhoseOverflowOneHasFound) {
  Mesh mesh(kCube.mesh);
  mesh.run([&](MeshAxes axes) {
    Training training(kCube, axes, kRankFraction);
    training.give_gradients(0, false);
    const at::Tensor found_inf = at::full({1}, axes.rank == 7, at::kFloat);
    EXPECT_TRUE(Step(training.groups, Nonfinite::propagate, {at::ones({1}), found_inf}).run().skipped);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const MeshShape mesh : {MeshShape{8, 1, 1}, MeshShape{1, 8, 1}, MeshShape{1, 1, 8}, MeshShape{2, 2, 2},
                               MeshShape{2, 1, 2}, MeshShape{2, 3, 1}, MeshShape{1, 2, 3}}) {
    for (const char* orientation : {"right", "left"}) {
      for (const char* method : {"auto", "rcqr"}) {
        all.push_back({mesh, orientation, Cut::fs_rows_tp_cols, method});
        all.push_back({mesh, orientation, Cut::tp_rows_fs_cols, method});
      }
    }
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str("dp", c.mesh.dp, "_fs", c.mesh.fs, "_tp", c.mesh.tp, "_", c.orientation,
                  c.cut == Cut::fs_rows_tp_cols ? "_fs_rows" : "_tp_rows", "_", c.method);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Layouts, testing::ValuesIn(cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Meshes, Traffic, testing::ValuesIn(cases()), name_of);

}  // namespace

}  // namespace torchdion::engine
