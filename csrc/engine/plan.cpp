#include "engine/plan.h"

#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

#include "engine/checks.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "linalg/matrices.h"

namespace torchdion::engine {

using algorithms::BatchShape;
using algorithms::Cost;

namespace {

// Elements of a task's workspace: so many that its factors stay in the cache, and as many as it may have at all, unless
// one matrix needs more.
constexpr int64_t kCachedWorkspace = 1 << 20, kLargestWorkspace = 6 << 20;

// Bytes that a task may take on a GPU, where no cache is as large and launches cost more than memory. A step stays
// below 12% of the FP32 weights of a GPT of 1.3B, where one task's workspace is larger and another's temporaries are.
constexpr int64_t kDeviceWorkspace = int64_t{456} << 20;

// Matrices of a task on a GPU that may take more where they have factors: each Gram matrix is factored by a cluster of
// its own.
constexpr int64_t kFewMatrices = 8;

using Key = std::vector<int64_t>;

// The layout's number among those of a group that were seen, each once: equal ones have the same on every rank.
int64_t number_of(const Layout& layout, std::vector<Layout>& seen) {
  const auto found = std::ranges::find_if(seen, [&](const Layout& other) { return is_same(layout, other); });
  const int64_t number = found - seen.begin();
  if (found == seen.end()) seen.push_back(layout);
  return number;
}

// Each once.
void add_axis(std::vector<Axis>& axes, const Axis& axis) {
  if (!axis.absent() && std::ranges::find(axes, axis.line, &Axis::line) == axes.end()) axes.push_back(axis);
}

// Plans one after the other, in the order of tasks.
class Planner {
 public:
  explicit Planner(const Groups& groups) : groups_(groups) {
    for (const algorithms::Algorithm* algorithm : algorithms::all()) {
      for (std::size_t g = 0; g < groups.all.size(); ++g) {
        if (groups.all[g].algorithm != algorithm) continue;
        for (const Layout& layout : groups.all[g].layouts) {
          for (const Axis* axis : {&layout.rows, &layout.cols, &layout.replicas, &layout.copies, &layout.batch}) {
            add_axis(plan.axes, *axis);
          }
        }
        algorithm->takes_matrices() ? sort_matrices(g) : sort_elements(g);
      }
    }
    assign_owners(plan.alike);
    for (std::size_t i = 0; i < plan.alike.size(); ++i) cut_into_batches(i);
  }

  Plan plan;

 private:
  Alike& alike_of(Key key, std::size_t group, std::size_t first) {
    key.push_back(static_cast<int64_t>(group));
    const auto [found, is_new] = known_.try_emplace(std::move(key), plan.alike.size());
    if (is_new) {
      plan.alike.emplace_back();
      plan.alike.back().group = group;
      set_dtypes(plan.alike.back(), first);
    }
    return plan.alike[found->second];
  }

  void set_dtypes(Alike& alike, std::size_t i) const {
    const Group& group = groups_.all[alike.group];
    alike.shape.parameter = group.X[i].scalar_type();
    bool in_double = group.X[i].scalar_type() == at::kDouble;
    for (const std::vector<at::Tensor>& state : group.states) {
      alike.shape.states.push_back(state[i].scalar_type());
      in_double = in_double || (group.takes_matrices() && state[i].scalar_type() == at::kDouble);
    }
    alike.shape.computing = in_double ? at::kDouble : at::kFloat;
    alike.shape.device = group.X[i].device();
  }

  void sort_matrices(std::size_t g) {
    const Group& group = groups_.all[g];
    std::vector<Layout> layouts;
    for (std::size_t i = 0; i < group.X.size(); ++i) {
      const Layout& layout = layout_of(group.layouts, i);
      if (c10::multiply_integers(whole_sizes(group.X[i], layout)) == 0) continue;
      const ParameterShape shape = shape_of(group, i);
      const int64_t step = step_of(group, i);
      Alike& alike = alike_of(key_of(group, i, shape, number_of(layout, layouts), step), g, i);
      if (alike.members.empty()) describe(alike, shape, layout, step);
      alike.members.push_back(i);
      add_matrices(alike, group.X[i], shape, layout);
    }
  }

  int64_t step_of(const Group& group, std::size_t i) const {
    const auto class_of_step = group.algorithm->class_of_step;
    if (!class_of_step || groups_.capturable || group.steps.empty()) return 0;
    return class_of_step(steps_taken(group.steps[i]) + 1, group.options);
  }

  Key key_of(const Group& group, std::size_t i, const ParameterShape& shape, int64_t layout_number, int64_t step) {
    const Layout& layout = layout_of(group.layouts, i);
    const at::Tensor &X = group.X[i], &G = group.G[i];
    Key key{shape.m,
            shape.n,
            shape.right,
            layout_number,
            step,
            static_cast<int64_t>(X.device().type()),
            X.device().index(),
            static_cast<int64_t>(X.scalar_type()),
            static_cast<int64_t>(G.scalar_type())};
    key.insert(key.end(), shape.ranks.begin(), shape.ranks.end());
    for (const std::vector<at::Tensor>& state : group.states) {
      key.push_back(static_cast<int64_t>(state[i].scalar_type()));
    }
    if (!layout.is_local()) return key;  // every tensor is contiguous there
    const MatrixForm form = form_of(group.options);
    for (const MatrixStrides& strides : {strides_of_written(X, form, false), strides_of_read(G, form, false)}) {
      key.insert(key.end(), {strides.row, strides.col});
    }
    return key;
  }

  void describe(Alike& alike, const ParameterShape& shape, const Layout& layout, int64_t step) const {
    alike.transposed = shape.right;
    alike.layout = shape.right ? layout.t() : layout;
    alike.shape_factor = std::sqrt(static_cast<double>(shape.m) / static_cast<double>(shape.n));
    alike.step = step;
    const auto [m, n] = shape.right ? std::pair(shape.n, shape.m) : std::pair(shape.m, shape.n);
    alike.shape.m = m;
    alike.shape.n = n;
    alike.shape.ranks = shape.ranks;
    alike.shape.rows = alike.layout.rows.piece(m).size;
    alike.shape.cols = alike.layout.cols.piece(n).size;
    const Group& group = groups_.all[alike.group];
    alike.shape.decoupled = decouples(*group.algorithm, shape.m, shape.n, shape.ranks, group.options, layout);
    if (group.algorithm->owned_work) {
      alike.owned = group.algorithm->owned_work(alike.shape, alike.layout, group.options);
    }
  }

  void add_matrices(Alike& alike, const at::Tensor& X, const ParameterShape& shape, const Layout& layout) const {
    int64_t here = c10::multiply_integers(shape.stack), most = here;
    if (!layout.batch.absent()) {
      most = here / shape.stack.front() * layout.batch.largest_piece(shape.stack.front());
      here = here / shape.stack.front() * layout.batch.piece(shape.stack.front()).size;
    }
    alike.counts.push_back(here);
    alike.shape.count += here;
    alike.shape.numel += X.numel();
    alike.most += most;
  }

  void sort_elements(std::size_t g) {
    const Group& group = groups_.all[g];
    for (std::size_t i = 0; i < group.X.size(); ++i) {
      const at::Tensor& X = group.X[i];
      const Axis& replicas = layout_of(group.layouts, i).replicas;
      for (std::size_t k = 0; k < group.states.size(); ++k) {
        check_state_sizes(X, X.sizes(), group.states[k][i], title_of(group.algorithm->states[k]));
      }
      const at::ScalarType dtype = replicas.absent() ? at::kFloat : linalg::compute_dtype({X.scalar_type()});
      Alike& alike = alike_of({static_cast<int64_t>(X.device().type()), X.device().index(),
                               reinterpret_cast<int64_t>(replicas.line.get()), static_cast<int64_t>(dtype)},
                              g, i);
      alike.layout.replicas = replicas;
      alike.members.push_back(i);
      alike.counts.push_back(1);
      alike.shape.count += 1;
      alike.shape.numel += X.numel();
      alike.most += 1;
    }
  }

  // An axis has the same batches in the same order on all its ranks, and so the same owners.
  void cut_into_batches(std::size_t index) {
    const Alike& alike = plan.alike[index];
    const Group& group = groups_.all[alike.group];
    const int64_t count = alike.shape.count;
    const int64_t size = group.takes_matrices() ? matrices_per_task(alike, group) : std::max<int64_t>(1, alike.most);
    for (int64_t begin = 0; begin < alike.most; begin += size) {
      PlannedBatch batch{index, std::min(begin, count), std::min(begin + size, count), alike.shape, {}};
      if (group.takes_matrices()) {
        batch.shape.count = batch.end - batch.begin;
        batch.shape.numel = batch.shape.count * alike.shape.rows * alike.shape.cols;
      }
      batch.shape.owners = owners_of(alike, batch.begin, batch.end);
      batch.cost = group.algorithm->cost(batch.shape, alike.layout, group.options);
      expect(batch.cost, alike.layout);
      plan.batches.push_back(std::move(batch));
    }
  }

  // As many matrices as a cached workspace holds, a whole number for each thread or, of a batch whose ranks share the
  // work, for each rank. Where it holds fewer, one for each as far as the largest workspace goes. On a GPU as many as
  // its workspace holds, in tasks of one size.
  static int64_t matrices_per_task(const Alike& alike, const Group& group) {
    const bool on_cpu = group.X[alike.members.front()].is_cpu();
    const Layout& layout = alike.layout;
    const int64_t threads = on_cpu ? at::get_num_threads() : 1;
    BatchShape round = alike.shape;  // of one matrix for each owner, on the rank with the largest piece
    round.owners = one_for_each(alike.owned.axes);
    round.count = ranks_of(alike.owned.axes);
    round.rows = layout.rows.largest_piece(round.m);
    round.cols = layout.cols.largest_piece(round.n);
    round.numel = round.count * round.rows * round.cols;
    const Cost of_round = group.algorithm->cost(round, layout, group.options);
    const int64_t workers =
        layout.is_local() ? threads : std::max<int64_t>(round.count, layout.cols.size * layout.replicas.size);
    const auto rounded_up = [](int64_t number, int64_t multiple) {
      return (number + multiple - 1) / multiple * multiple;
    };
    const int64_t elements = std::max<int64_t>(1, rounded_up(of_round.workspace, round.count) / round.count);
    if (!on_cpu) {
      const int64_t temporary = rounded_up(of_round.temporary_bytes, round.count) / round.count;
      const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(round.computing)) + temporary;
      const int64_t held = std::max(round.ranks.empty() ? 1 : kFewMatrices, kDeviceWorkspace / bytes);
      const int64_t most = std::max<int64_t>(1, held / workers) * workers;
      const int64_t tasks = std::max<int64_t>(1, rounded_up(alike.most, most) / most);
      return std::max<int64_t>(1, rounded_up(rounded_up(alike.most, tasks) / tasks, workers));
    }
    const int64_t cached = kCachedWorkspace / elements;
    if (cached >= workers) return cached / workers * workers;
    return std::clamp<int64_t>(kLargestWorkspace / elements, 1, workers);
  }

  void expect(const Cost& cost, const Layout& layout) {
    const auto add = [&](const Axis& axis, const algorithms::AxisCost& of_axis) {
      if (!axis.absent()) plan.expected_traffic[axis.name()] += of_axis.elements;
    };
    add(layout.rows, cost.rows);
    add(layout.cols, cost.cols);
    add(layout.replicas, cost.replicas);
    add(layout.copies, cost.copies);
  }

  const Groups& groups_;
  std::map<Key, std::size_t> known_;
};

}  // namespace

Plan plan_of(const Groups& groups) { return Planner(groups).plan; }

Plan plan_of(const SharedGroups& groups) {
  Plan plan = plan_of(groups.updated());
  for (std::size_t g = 0; g < groups.updated().all.size(); ++g) {
    const Bucket* bucket = groups.bucket_of(g);
    if (!bucket) continue;
    add_axis(plan.axes, bucket->axis);
    for (std::size_t member = 0; member < bucket->X.size(); ++member) {
      plan.expected_traffic[bucket->axis.name()] += exchange_cost(*bucket, member).elements;
    }
  }
  return plan;
}

std::string Plan::description(const PlannedBatch& batch, const Groups& groups) const {
  const Alike& set = alike[batch.alike];
  const Group& group = groups.all[set.group];
  const int64_t count = batch.end - batch.begin;
  if (!group.takes_matrices()) return c10::str(count, " parameters under ", group.algorithm->title);
  const auto [m, n] = set.transposed ? std::pair(set.shape.n, set.shape.m) : std::pair(set.shape.m, set.shape.n);
  return c10::str(count, count == 1 ? " matrix of " : " matrices of ", m, "×", n, " under ", group.algorithm->title);
}

}  // namespace torchdion::engine
