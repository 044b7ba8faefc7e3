#include "engine/plan.h"

#include <gtest/gtest.h>

#include <sstream>

#include "comm/line.h"
#include "comm/mesh_as_threads.h"
#include "engine/parameter_costs.h"
#include "engine/step.h"
#include "engine/step_groups.h"

namespace torchdion::engine {

namespace {

struct Parameter {
  std::vector<int64_t> sizes, q_sizes;
  at::ScalarType dtype = at::kFloat;
  int64_t step = 0;
};

Group group_of(const std::vector<Parameter>& parameters, MatrixForm form = {}) {
  Group group = dion_group({}, form);
  for (const Parameter& p : parameters) {
    group.X.push_back(normal(p.sizes, 1, p.dtype));
    group.G.push_back(normal(p.sizes, 2, p.dtype));
    group.states[kMomentum].push_back(at::zeros(p.sizes, p.dtype));
    group.states[kQ].push_back(normal(p.q_sizes, 3, p.dtype));
    group.steps.push_back(at::full({}, static_cast<double>(p.step), at::kFloat));
  }
  return group;
}

struct Sorted {
  std::size_t batches;
  int64_t matrices = 0;
};

Sorted sort(const Group& group) {
  Sorted sorted{};
  for (const PlannedBatch& batch : plan_of({{group}}).batches) {
    ++sorted.batches;
    sorted.matrices += batch.shape.count;
  }
  return sorted;
}

TEST(Plan, PutsMatricesAlikeInShapeDtypeRankAndOrientationTogether) {
  const Parameter plain{{12, 20}, {12, 4}};
  EXPECT_EQ(sort(group_of({plain, plain, plain})).batches, 1);
  for (const Parameter& other : {Parameter{{20, 12}, {20, 4}}, Parameter{{12, 20}, {12, 5}},
                                 Parameter{{12, 20}, {20, 4}}, Parameter{{12, 20}, {12, 4}, at::kDouble}}) {
    const Sorted sorted = sort(group_of({plain, other, plain}));
    EXPECT_EQ(sorted.batches, 2);
    EXPECT_EQ(sorted.matrices, 3);
  }
}

TEST(Plan, PutsMatricesAlikeInStridesTogether) {
  Group group = group_of({{{12, 20}, {12, 4}}, {{12, 20}, {12, 4}}});
  group.G[1] = column_major(group.G[1]);
  EXPECT_EQ(sort(group).batches, 2);
}

TEST(Plan, KeepsStepsApartOfWhichNoiseAndSketchesAreMade) {
  const auto at_step = [](int64_t taken) { return Parameter{{12, 20}, {12, 4}, at::kFloat, taken}; };
  Group group = group_of({at_step(0), at_step(5), at_step(7)});
  const auto steps_of = [&] {
    std::vector<int64_t> steps;
    for (const Alike& alike : plan_of({{group}}).alike) steps.push_back(alike.step);
    return steps;
  };
  EXPECT_EQ(steps_of(), (std::vector<int64_t>{1, 8})) << "noise counts to the next power of two";
  group.options.set("orthonormalize", std::string_view("rcqr"));
  EXPECT_EQ(steps_of(), (std::vector<int64_t>{1, 6, 8})) << "every step has a sketch of its own";
  EXPECT_EQ(plan_of({{group}, /*capturable=*/true}).batches.size(), 1u) << "the device knows its steps";
}

TEST(Plan, LeavesOutParametersWithoutElements) {
  const Sorted sorted = sort(group_of({{{0, 20}, {0, 0}}, {{12, 20}, {12, 4}}, {{12, 0}, {12, 0}}}));
  EXPECT_EQ(sorted.batches, 1);
  EXPECT_EQ(sorted.matrices, 1);
}

TEST(Plan, CutsBatchesSoThatTheWorkspaceStaysWithinAMillionElements) {
  const Group group = group_of({{{60, 300, 200}, {60, 300, 100}}}, {.batch_dims = 1});
  int64_t matrices = 0;
  for (const PlannedBatch& batch : plan_of({{group}}).batches) {
    EXPECT_LE(batch.cost.workspace, 1 << 20);
    EXPECT_EQ(batch.begin, matrices);
    matrices = batch.end;
  }
  EXPECT_EQ(matrices, 60);
}

TEST(Plan, IsInTheOrderOfTheTableOfAlgorithmsWhateverThatOfTheGroups) {
  Groups groups = all_groups();
  std::reverse(groups.all.begin(), groups.all.end());
  const Plan plan = plan_of(groups);
  std::vector<std::string> names;
  for (const PlannedBatch& batch : plan.batches) {
    names.push_back(plan.description(batch, groups));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"3 matrices of 8×10 under Dion", "2 matrices of 12×20 under Dion",
                                             "1 matrix of 20×12 under Dion", "1 matrix of 9×9 under Dion",
                                             "3 parameters under Lion", "2 parameters under AdamW"}));
}

// On a mesh: cut, compressed and not, square and not, experts, with copies, and what replicas average.
struct Meshed {
  Layout whole(at::IntArrayRef sizes) const { return {.replicas = dp, .sizes = sizes.vec()}; }

  Group matrices(at::TensorOptions options) const {
    Group group = dion_group({});
    const auto add = [&](Layout layout, std::vector<int64_t> q) {
      const at::IntArrayRef sizes = layout.sizes;
      const std::vector<int64_t> own = {layout.rows.piece(sizes[0]).size, layout.cols.piece(sizes[1]).size};
      const std::vector<int64_t> own_Q = {layout.rows.piece(q[0]).size, layout.cols.piece(q[1]).size};
      group.X.push_back(at::zeros(own, options));
      group.G.push_back(at::zeros(own, options));
      group.states[kMomentum].push_back(at::zeros(own, options));
      group.states[kQ].push_back(at::zeros(own_Q, options));
      group.steps.push_back(at::zeros({}));
      group.whole_factors.resize(1);
      group.whole_factors[0].push_back(q);
      group.layouts.push_back(std::move(layout));
    };
    for (int i = 0; i < 3; ++i) add({.rows = fs, .cols = tp, .replicas = dp, .sizes = {12, 20}}, {12, 4});
    for (int i = 0; i < 3; ++i) add({.rows = fs, .replicas = dp, .sizes = {16, 8}}, {16, 2});
    add({.cols = fs, .replicas = dp, .sizes = {8, 8}}, {8, 8});
    add(whole({12, 20}), {12, 4});
    return group;
  }

  Groups groups(at::TensorOptions options) const {
    Group experts = dion_group({}, {.batch_dims = 1}), lion = group_under("lion");
    // which iteration is chosen, a device that is a GPU's or a CPU's decides
    Group muon = group_under("muon", {{"newton_schulz", std::string_view("polar_express")}});
    const Layout layout{.replicas = dp, .batch = fs, .sizes = {5, 8, 10}};
    const int64_t count = fs.piece(5).size;
    experts.X = experts.G = experts.states[kMomentum] = {at::zeros({count, 8, 10}, options)};
    experts.states[kQ] = {at::zeros({count, 8, 2}, options)};
    experts.whole_factors = {{{5, 8, 2}}};
    experts.steps = {at::zeros({})};
    experts.layouts = {layout};
    // Two of 12×20 and one that is cut the other way round.
    for (const Layout& of : {Layout{.rows = fs, .replicas = dp, .copies = tp, .sizes = {12, 20}},
                             Layout{.rows = fs, .replicas = dp, .copies = tp, .sizes = {12, 20}},
                             Layout{.cols = tp, .copies = fs, .sizes = {16, 10}}}) {
      muon.X.push_back(at::zeros({of.rows.piece(of.sizes[0]).size, of.cols.piece(of.sizes[1]).size}, options));
      muon.steps.push_back(at::zeros({}));
      muon.layouts.push_back(of);
    }
    muon.G = muon.X;
    muon.states = {muon.X};
    lion.X = lion.G = {at::zeros({7}, options), at::zeros({5}, options)};
    lion.states = {lion.X};
    lion.steps = {at::zeros({}), at::zeros({})};
    lion.layouts = {whole({7}), whole({5})};
    return {{matrices(options), experts, muon, lion}};
  }

  Axis dp, fs, tp;
};

// An axis of a group that cannot send, as a rank sees it.
Axis imagined(const Axis& axis) {
  Axis other = axis;
  other.line = std::make_shared<comm::Line>();
  other.line->options = axis.line->options;
  return other;
}

// All that a plan says, for whole plans to be compared.
std::string text_of(const Plan& plan, const Groups& groups) {
  std::ostringstream text;
  const auto add = [&](const algorithms::Cost& cost) {
    for (const algorithms::AxisCost& axis : {cost.rows, cost.cols, cost.replicas, cost.copies}) {
      text << axis.elements << " elements, " << axis.bytes << " bytes; ";
    }
    text << cost.operations << " operations, " << cost.memory_bytes << " bytes of memory, " << cost.workspace << " + "
         << cost.temporary_bytes << "\n";
  };
  for (const PlannedBatch& batch : plan.batches) {
    const algorithms::BatchShape& shape = batch.shape;
    text << plan.description(batch, groups) << " " << batch.begin << " to " << batch.end << " of alike " << batch.alike
         << ": " << shape.rows << "×" << shape.cols << " of " << shape.m << "×" << shape.n << "×"
         << at::IntArrayRef(shape.ranks) << ", " << shape.count << " " << shape.numel << " " << shape.decoupled << " ";
    for (const std::vector<int64_t>& on_axis : shape.owners) text << c10::str("owners ", on_axis, " ");
    add(batch.cost);
  }
  for (const ParameterCost& cost : costs_of(plan, groups)) {
    text << "parameter " << cost.parameter << " of " << cost.group << ": " << cost.decoupled << " " << cost.state_bytes
         << " ";
    add(cost.cost);
  }
  for (const auto& [name, elements] : plan.expected_traffic) text << name << ": " << elements << "\n";
  for (const Axis& axis : plan.axes) text << axis.name() << " ";
  return text.str();
}

const at::TensorOptions kMetaFloat = at::TensorOptions(at::kFloat).device(at::kMeta);

TEST(PlanOfMetaTensors, WithoutProcessGroupsIsThatOfRealOnes) {
  comm::Mesh({2, 2, 2}).run([](comm::MeshAxes axes) {
    const Groups groups = Meshed{axes.dp, axes.fs, axes.tp}.groups(at::kFloat);
    const Groups meta = Meshed{imagined(axes.dp), imagined(axes.fs), imagined(axes.tp)}.groups(kMetaFloat);
    const Plan plan = plan_of(groups), of_meta = plan_of(meta);
    EXPECT_EQ(text_of(of_meta, meta), text_of(plan, groups)) << "rank " << axes.rank;
    EXPECT_EQ(plan.axes.size(), 3u);
    const Report report = Step(groups, Nonfinite::propagate).run();
    EXPECT_EQ(report.expected_traffic, of_meta.expected_traffic);
    EXPECT_EQ(report.batches, static_cast<int64_t>(of_meta.batches.size()));
  });
}

// Costs but for bytes, which rings round, and workspaces, which are aligned.
std::vector<int64_t> countable(const algorithms::Cost& cost) {
  return {cost.rows.elements, cost.cols.elements, cost.replicas.elements, cost.copies.elements,
          cost.operations,    cost.memory_bytes,  cost.temporary_bytes};
}

TEST(CostsOfParameters, SumToThoseOfTheBatches) {
  comm::Mesh({2, 2, 2}).run([](comm::MeshAxes axes) {
    const Groups groups = Meshed{axes.dp, axes.fs, axes.tp}.groups(kMetaFloat);
    const Plan plan = plan_of(groups);
    std::vector<int64_t> of_batches(7), of_parameters(7);
    std::map<std::string, int64_t> traffic;
    const auto add = [](std::vector<int64_t>& sums, const algorithms::Cost& cost) {
      const std::vector<int64_t> more = countable(cost);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
    };
    for (const PlannedBatch& batch : plan.batches) add(of_batches, batch.cost);
    std::size_t parameters = 0;
    for (const ParameterCost& cost : costs_of(plan, groups)) {
      add(of_parameters, cost.cost);
      ++parameters;
      const Layout& layout = cost.layout;
      if (!layout.rows.absent()) traffic[layout.rows.name()] += cost.cost.rows.elements;
      if (!layout.cols.absent()) traffic[layout.cols.name()] += cost.cost.cols.elements;
      if (!layout.replicas.absent()) traffic[layout.replicas.name()] += cost.cost.replicas.elements;
      if (!layout.copies.absent()) traffic[layout.copies.name()] += cost.cost.copies.elements;
    }
    EXPECT_EQ(of_parameters, of_batches) << "rank " << axes.rank;
    EXPECT_EQ(traffic, plan.expected_traffic) << "rank " << axes.rank;
    EXPECT_EQ(parameters, 8u + 1 + 3 + 2);
    for (const int64_t sum : of_batches) EXPECT_GT(sum, 0);
  });
}

TEST(CostsOfParameters, AreThoseOfTheFormulas) {
  const Groups groups{{group_of({{{12, 20}, {12, 4}, at::kBFloat16}}), elementwise_group("adamw", {{7}})}};
  const std::vector<ParameterCost> costs = costs_of(plan_of(groups), groups);
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[0].state_bytes, (12 * 20 + 12 * 4) * 2);
  EXPECT_EQ(costs[0].cost.memory_bytes, 12 * 20 * (6 * 2 + 3 * 2)) << "M: four reads and two writes; X, G: three";
  EXPECT_GE(costs[0].cost.operations, 4 * 2 * 12 * 20 * 4) << "four products";
  EXPECT_EQ(costs[0].cost.workspace, (12 + 20) * 4);
  EXPECT_EQ(costs[1].state_bytes, 2 * 7 * 8);
  EXPECT_EQ(costs[1].cost.memory_bytes, 7 * (2 * 16 + 3 * 8));
  EXPECT_EQ(costs[1].cost.operations, 0) << "as many as passes over memory take along";
}

// The rank that has fewer experts takes part in as many batches, of none of its own.
TEST(Plan, HasTheSameBatchesOnAllRanksOfAStack) {
  comm::Mesh({2, 3, 1}).run([](comm::MeshAxes axes) {
    const Groups groups = Meshed{axes.dp, axes.fs, {}}.groups(kMetaFloat);
    const auto count = static_cast<int64_t>(plan_of(groups).batches.size());
    EXPECT_EQ(count, 8);
    Groups one{{groups.all[1]}};
    const Plan plan = plan_of(one);
    ASSERT_EQ(plan.batches.size(), 1u);
    EXPECT_EQ(plan.batches[0].shape.count, axes.fs.rank == 2 ? 1 : 2);
    EXPECT_EQ(plan.alike[0].most, 2);
  });
}

TEST(Plan, RefusesAPieceThatIsNotWhatItsLayoutSays) {
  comm::Mesh({1, 2, 1}).run([](comm::MeshAxes axes) {
    Group group = dion_group({{{6, 20}, {6, 4}}});
    group.whole_factors = {{{12, 4}}};
    group.layouts = {{.rows = axes.fs, .sizes = {12, 20}}};
    EXPECT_NO_THROW(plan_of({{group}}));
    Group other = group;
    other.layouts[0].sizes = {14, 20};
    EXPECT_THROW(plan_of({{other}}), c10::ValueError);
    other = group;
    other.states[kQ][0] = at::zeros({12, 4});
    EXPECT_THROW(plan_of({{other}}), c10::ValueError);
    other = group;
    other.options.set("blocks", int64_t{3});
    EXPECT_THROW(plan_of({{other}}), c10::Error);
  });
}

}  // namespace

}  // namespace torchdion::engine
