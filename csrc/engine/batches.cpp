#include "engine/batches.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

#include "engine/checks.h"
#include "engine/shapes.h"

namespace torchdion::engine {

namespace {

using algorithms::DionBatch;
using linalg::Matrices;

// Elements of a task's workspace: so many that P and R of its matrices stay in the cache, and as many as it may have at
// all, unless one matrix needs more.
constexpr int64_t kCachedWorkspace = 1 << 20, kLargestWorkspace = 6 << 20;

// Bytes that a task may take on a GPU, where no cache is as large and launches cost more than memory. With the 64 MiB
// in which Gram matrices are computed it stays below 12% of the FP32 weights of a GPT of 1.3B.
constexpr int64_t kDeviceWorkspace = int64_t{456} << 20;

// Matrices of a task on a GPU that may take more: the blocks on their diagonals are factored by one multiprocessor
// each.
constexpr int64_t kFewMatrices = 8;

// One parameter as the matrices that it holds, in the user's orientation.
struct Entry {
  at::Tensor X, G, M, Q;
  bool right;
  ParameterShape shape;
  at::Tensor unchanged;  // of each of its matrices
  int64_t step = 0;
  const float* steps_before = nullptr;  // where the step is counted on the device
};

// The layouts of a group, each once, so that equal ones have the same number on every rank.
class Layouts {
 public:
  int64_t number_of(const Layout& layout) {
    const auto equal = [&](const Layout& other) { return is_same(layout, other); };
    const auto found = std::find_if(seen_.begin(), seen_.end(), equal);
    if (found != seen_.end()) return found - seen_.begin();
    seen_.push_back(layout);
    return static_cast<int64_t>(seen_.size()) - 1;
  }

 private:
  std::vector<Layout> seen_;
};

using Key = std::tuple<std::vector<int64_t>, std::vector<at::ScalarType>, bool>;

Key key_of(const Entry& entry, const Layout& layout, Layouts& layouts, bool sketches) {
  const ParameterShape& shape = entry.shape;
  const c10::Device device = entry.X.device();
  std::vector<int64_t> numbers{
      shape.m, shape.n, shape.r, layouts.number_of(layout), static_cast<int64_t>(device.type()), device.index()};
  if (layout.is_local()) {  // elsewhere every tensor is contiguous
    for (const at::Tensor* tensor : {&entry.X, &entry.G, &entry.M, &entry.Q}) {
      numbers.insert(numbers.end(), {tensor->stride(-2), tensor->stride(-1)});
    }
  }
  numbers.push_back(sketches ? entry.step : 0);  // a sketch is keyed by the step, or the device's count of it
  return {numbers,
          {entry.X.scalar_type(), entry.G.scalar_type(), entry.M.scalar_type(), entry.Q.scalar_type()},
          entry.right};
}

Entry entry_of(const DionGroup& group, std::size_t i, const Layout& layout, bool capturable, Copies& copies) {
  const at::Tensor &X = group.X[i], &G = group.G[i], &M = group.M[i], &Q = group.Q[i];
  const ParameterShape shape = shape_of(group, i);
  check_gradient(X, G);
  check_elementwise_state(X, M, "state momentum");
  check_Q_memory(X, Q);
  const bool cut = !layout.is_local();
  std::optional<at::Tensor> x = matrix_view(X, group.form), g = matrix_view(G, group.form);
  if (!x || !linalg::is_strided_for_gemm(*x) || X.is_neg() || (cut && !X.is_contiguous())) {
    x = matrix_view(copies.writable(X), group.form);
  }
  if (!g || (cut && !G.is_contiguous())) g = matrix_view(copies.readable(G), group.form);
  Entry entry{*x, *g, *matrix_view(M, group.form), Q, shape.right, shape, {}};
  if (group.skip_zero_gradients) entry.unchanged = group.unchanged[i];
  if (capturable) {
    entry.steps_before = group.steps[i].const_data_ptr<float>();
  } else {
    entry.step = group.steps[i].item<int64_t>() + 1;
  }
  return entry;
}

// The body of Dion is Algorithm 1; Orientation::right gives it the transposes.
DionBatch batch_of(const std::vector<Entry>& entries, const Layout& layout) {
  const auto matrices = [&](at::Tensor Entry::*member) {
    Matrices all(entries.front().*member);
    for (std::size_t i = 1; i < entries.size(); ++i) all.append(entries[i].*member);
    return all;
  };
  DionBatch batch;
  const Entry& first = entries.front();
  const ParameterShape& shape = first.shape;
  batch.X = matrices(&Entry::X);
  batch.G = matrices(&Entry::G);
  batch.M = matrices(&Entry::M);
  batch.Q = matrices(&Entry::Q);
  batch.layout = layout;
  batch.global_rows = shape.m;
  batch.global_cols = shape.n;
  batch.r = shape.r;
  batch.shape_factor = std::sqrt(static_cast<double>(shape.m) / static_cast<double>(shape.n));
  for (const Entry& entry : entries) {
    if (!entry.unchanged.defined() || entry.unchanged.numel() == 0) continue;  // split() gives one piece of nothing
    for (const at::Tensor& number : entry.unchanged.split(1)) batch.unchanged.push_back(number);
  }
  batch.step = first.step;
  batch.steps_before = first.steps_before;
  batch.order = layout.has_averaged_copies || !layout.replicas.absent() ? comm::Order::fixed : comm::Order::any;
  batch.compressed = compresses(shape.m, shape.n, shape.r, layout);
  if (first.right) {
    batch.X = batch.X.t();
    batch.G = batch.G.t();
    batch.M = batch.M.t();
    batch.layout = layout.t();
    std::swap(batch.global_rows, batch.global_cols);
  }
  return batch;
}

// Columns that a Cholesky factorization on a GPU takes at a time.
constexpr int64_t kPanel = 64;

// Bytes of a matrix's factors on a GPU, and of what orthonormalizing them takes: a Cholesky factorization in FP64 with
// its panels, and later another P beside its factor, of rcqr two of each.
int64_t device_bytes(const DionBatch& batch, int64_t rows, int64_t factors, Orthonormalize method) {
  const int64_t element = c10::elementSize(linalg::compute_dtype({batch.X.dtype, batch.M.dtype, batch.Q.dtype}));
  const int64_t square = batch.r * batch.r;
  const int64_t panels = (batch.r + kPanel - 1) / kPanel * 2 * kPanel * batch.r;
  const int64_t factoring = 8 * (square + panels + 3 * kPanel * kPanel);
  const int64_t others = method == Orthonormalize::rcqr ? 2 : 1;
  return factors * element + std::max(factoring, others * (8 * square + rows * batch.r * element));
}

// As many matrices as a cached workspace holds, a whole number for each thread or, of a batch whose ranks share the
// work, for each rank. Where it holds fewer, one for each as far as the largest workspace goes. On a GPU as many as its
// workspace holds, in tasks of one size; `count` are those of the rank with most.
int64_t matrices_per_task(const DionBatch& batch, const Layout& layout, int64_t count, Orthonormalize method) {
  const bool on_cpu = batch.X.device.is_cpu();
  const int64_t threads = on_cpu ? at::get_num_threads() : 1;
  const int64_t workers = layout.is_local() ? threads : batch.layout.cols.size * batch.layout.replicas.size;
  const int64_t factors_of_n = batch.layout.rows.absent() ? 1 : 2;
  const int64_t rows = batch.layout.rows.largest_piece(batch.global_rows);
  const int64_t cols = batch.layout.cols.largest_piece(batch.global_cols);
  const int64_t each = (rows + factors_of_n * cols) * batch.r;
  const auto rounded_up = [](int64_t number, int64_t multiple) {
    return (number + multiple - 1) / multiple * multiple;
  };
  if (!on_cpu) {
    const int64_t held = std::max(kFewMatrices, kDeviceWorkspace / device_bytes(batch, rows, each, method));
    const int64_t most = std::max<int64_t>(1, held / workers) * workers;
    const int64_t tasks = std::max<int64_t>(1, rounded_up(count, most) / most);
    return std::max<int64_t>(1, rounded_up(rounded_up(count, tasks) / tasks, workers));
  }
  const int64_t cached = kCachedWorkspace / each;
  if (cached >= workers) return cached / workers * workers;
  return std::clamp<int64_t>(kLargestWorkspace / each, 1, workers);
}

DionBatch piece_of(const DionBatch& whole, int64_t begin, int64_t end) {
  DionBatch piece = whole;
  piece.X = whole.X.slice(begin, end);
  piece.G = whole.G.slice(begin, end);
  piece.M = whole.M.slice(begin, end);
  piece.Q = whole.Q.slice(begin, end);
  if (!whole.unchanged.empty()) {
    piece.unchanged.assign(whole.unchanged.begin() + begin, whole.unchanged.begin() + end);
  }
  return piece;
}

// The matrices of the entries on the rank that holds most of them.
int64_t largest_count(const std::vector<Entry>& entries, const Layout& layout) {
  int64_t count = 0;
  for (const Entry& entry : entries) {
    const std::vector<int64_t>& stack = entry.shape.stack;
    int64_t matrices = std::accumulate(stack.begin(), stack.end(), int64_t{1}, std::multiplies<>());
    if (!layout.batch.absent()) matrices = matrices / stack.front() * layout.batch.largest_piece(stack.front());
    count += matrices;
  }
  return count;
}

}  // namespace

at::Tensor Copies::writable(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_neg()) return tensor;
  written_.push_back({tensor, tensor.resolve_neg().contiguous()});
  return written_.back().source;
}

at::Tensor Copies::readable(const at::Tensor& tensor) {
  read_.push_back(tensor.contiguous());
  return read_.back();
}

void Copies::write_back() const {
  for (const Pair& pair : written_) pair.target.copy_(pair.source);
}

std::vector<DionBatch> dion_batches(const DionGroup& group, bool capturable, Copies& copies) {
  const bool sketches = group.hyper.orthonormalize == Orthonormalize::rcqr;
  Layouts layouts;
  std::map<Key, std::size_t> places;  // batches stand in the order of their first parameters, the same on every rank
  std::vector<std::pair<Layout, std::vector<Entry>>> sorted;
  for (std::size_t i = 0; i < group.X.size(); ++i) {
    const Layout& layout = layout_of(group.layouts, i);
    if (whole_numel(group.X[i], layout) == 0) continue;
    Entry entry = entry_of(group, i, layout, capturable, copies);
    const auto [found, is_new] = places.emplace(key_of(entry, layout, layouts, sketches), sorted.size());
    if (is_new) sorted.push_back({layout, {}});
    sorted[found->second].second.push_back(std::move(entry));
  }
  std::vector<DionBatch> batches;
  for (const auto& [layout, entries] : sorted) {
    const DionBatch whole = batch_of(entries, layout);
    const int64_t largest = largest_count(entries, layout), count = whole.X.count();
    const int64_t size = matrices_per_task(whole, layout, largest, group.hyper.orthonormalize);
    for (int64_t begin = 0; begin < largest; begin += size) {
      batches.push_back(piece_of(whole, std::min(begin, count), std::min(begin + size, count)));
    }
  }
  return batches;
}

}  // namespace torchdion::engine
