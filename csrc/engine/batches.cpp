#include "engine/batches.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/checks.h"

namespace torchdion::engine {

namespace {

using algorithms::DionBatch;
using linalg::Matrices;

// Elements of a task's workspace: so many that P and R of its matrices stay in the cache, and as many as it may have at
// all, unless one matrix needs more.
constexpr int64_t kCachedWorkspace = 1 << 20, kLargestWorkspace = 6 << 20;

// One parameter as the matrices that it holds, in the user's orientation.
struct Entry {
  at::Tensor X, G, M, Q;
  bool right;
  int64_t step;
};

using Key = std::tuple<std::vector<int64_t>, std::vector<at::ScalarType>, bool>;

Key key_of(const Entry& entry, bool sketches) {
  std::vector<int64_t> layout;
  for (const at::Tensor* tensor : {&entry.X, &entry.G, &entry.M, &entry.Q}) {
    layout.insert(layout.end(), {tensor->size(-2), tensor->size(-1), tensor->stride(-2), tensor->stride(-1)});
  }
  layout.push_back(sketches ? entry.step : 0);  // a sketch is keyed by the step
  return {layout,
          {entry.X.scalar_type(), entry.G.scalar_type(), entry.M.scalar_type(), entry.Q.scalar_type()},
          entry.right};
}

Entry entry_of(const DionGroup& group, std::size_t i, Copies& copies) {
  const at::Tensor &X = group.X[i], &G = group.G[i], &M = group.M[i], &Q = group.Q[i];
  check_gradient(X, G);
  check_elementwise_state(X, M, "state momentum");
  check_Q(X, Q, group.form);
  std::optional<at::Tensor> x = matrix_view(X, group.form), g = matrix_view(G, group.form);
  if (!x || !linalg::is_strided_for_gemm(*x) || X.is_neg()) x = matrix_view(copies.writable(X), group.form);
  if (!g) g = matrix_view(copies.readable(G), group.form);
  const int64_t m = x->size(-2), n = x->size(-1);
  const bool right = m == n ? group.orientation == Orientation::right : Q.size(-2) == m;
  return {*x, *g, *matrix_view(M, group.form), Q, right, group.steps[i].item<int64_t>() + 1};
}

// The body of Dion is Algorithm 1; Orientation::right gives it the transposes.
DionBatch batch_of(const std::vector<Entry>& entries) {
  const auto matrices = [&](at::Tensor Entry::*member) {
    Matrices all(entries.front().*member);
    for (std::size_t i = 1; i < entries.size(); ++i) all.append(entries[i].*member);
    return all;
  };
  DionBatch batch;
  const Entry& first = entries.front();
  batch.X = matrices(&Entry::X);
  batch.G = matrices(&Entry::G);
  batch.M = matrices(&Entry::M);
  batch.Q = matrices(&Entry::Q);
  batch.shape_factor = std::sqrt(static_cast<double>(batch.X.rows) / static_cast<double>(batch.X.cols));
  batch.step = first.step;
  if (first.right) {
    batch.X = batch.X.t();
    batch.G = batch.G.t();
    batch.M = batch.M.t();
  }
  batch.global_rows = batch.X.rows;
  return batch;
}

// As many matrices as a cached workspace holds, a whole number for each thread. Where it holds fewer than there are
// threads, one for each as far as the largest workspace goes.
int64_t matrices_per_task(const DionBatch& batch) {
  const int64_t threads = at::get_num_threads();
  const int64_t each = algorithms::dion_workspace(batch.X.slice(0, 1), batch.Q.cols);
  const int64_t cached = kCachedWorkspace / each;
  if (cached >= threads) return cached / threads * threads;
  return std::clamp<int64_t>(kLargestWorkspace / each, 1, threads);
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

std::vector<DionBatch> dion_batches(const DionGroup& group, Copies& copies) {
  const bool sketches = group.hyper.orthonormalize == Orthonormalize::rcqr;
  std::map<Key, std::vector<Entry>> sorted;
  for (std::size_t i = 0; i < group.X.size(); ++i) {
    if (group.X[i].numel() == 0) continue;
    Entry entry = entry_of(group, i, copies);
    sorted[key_of(entry, sketches)].push_back(std::move(entry));
  }
  std::vector<DionBatch> batches;
  for (const auto& [key, entries] : sorted) {
    const DionBatch whole = batch_of(entries);
    const int64_t size = matrices_per_task(whole);
    for (int64_t begin = 0; begin < whole.X.count(); begin += size) {
      const int64_t end = std::min(begin + size, whole.X.count());
      DionBatch piece = whole;
      piece.X = whole.X.slice(begin, end);
      piece.G = whole.G.slice(begin, end);
      piece.M = whole.M.slice(begin, end);
      piece.Q = whole.Q.slice(begin, end);
      batches.push_back(std::move(piece));
    }
  }
  return batches;
}

}  // namespace torchdion::engine
