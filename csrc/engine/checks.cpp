#include "engine/checks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "algorithms/all.h"
#include "linalg/backend.h"
#include "linalg/memory.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// Whether distinct indices have distinct addresses: from the shortest stride on, each leaps over all before it.
bool has_distinct_elements(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_contiguous()) return true;
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) < tensor.stride(b); });
  int64_t extent = 1;
  for (const int64_t d : order) {
    if (tensor.size(d) == 1) continue;
    if (tensor.stride(d) < extent) return false;
    extent += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return true;
}

void check_dense(const at::Tensor& X, const at::Tensor& tensor, const std::string& what) {
  const bool fits = tensor.layout() == at::kStrided && tensor.device() == X.device();
  TORCH_CHECK_VALUE(fits && is_computed(tensor.scalar_type()), prefix(), "the ", what, " of ", called(X),
                    " must be a dense floating-point tensor on ", X.device(), ", got ", tensor.toString(), " on ",
                    tensor.device());
  TORCH_CHECK_VALUE(linalg::has_memory(tensor), prefix(), "the ", what, " of ", called(X),
                    " must have memory of its own, got a wrapped, fake or freed tensor");
}

void refuse_memory(const at::Tensor& tensor, const std::string& name) {
  const bool is_freed = tensor.has_storage() && !tensor.unsafeGetTensorImpl()->is_python_dispatch() &&
                        tensor.storage().nbytes() < linalg::bytes_in_use(tensor);
  TORCH_CHECK_VALUE(!is_freed, prefix(), "the storage of ", name, " must hold its ", linalg::bytes_in_use(tensor),
                    " bytes, got ", tensor.storage().nbytes());
  TORCH_CHECK_VALUE(false, prefix(), name, " must have memory of its own, got a wrapped or fake tensor");
}

}  // namespace

std::string captured() { return algorithms::assigned(*algorithms::option("capturable"), true); }

bool is_captured(const at::Tensor& tensor) {
  return tensor.defined() && linalg::has_backend(tensor.device().type()) &&
         linalg::backend_of(tensor.device()).is_capturing(tensor.device());
}

bool is_computed(at::ScalarType dtype) { return !algorithms::name_of(dtype).empty(); }

bool counts_steps(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || at::isIntegralType(dtype, /*includeBool=*/false);
}

void check_parameters(const std::vector<at::Tensor>& X) {
  for (const at::Tensor& x : X) {
    const bool has_place = x.is_cpu() || x.is_cuda() || linalg::has_backend(x.device().type());
    TORCH_CHECK_VALUE(x.layout() == at::kStrided && has_place && is_computed(x.scalar_type()), prefix(), called(x),
                      " must be a dense floating-point CPU or CUDA tensor, got ", x.toString());
    linalg::backend_of(x.device());  // throws where this build has none
    TORCH_CHECK_VALUE(has_distinct_elements(x), prefix(), "the elements of ", called(x),
                      " must not share memory, got strides ", x.strides());
    if (!linalg::has_memory(x)) refuse_memory(x, called(x));
  }
}

void check_storage(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& tensors, const std::string& what) {
  for (std::size_t i = 0; i < X.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.layout() != at::kStrided || tensor._is_zerotensor()) continue;  // has none, or is refused later
    if (!linalg::has_memory(tensor)) refuse_memory(tensor, c10::str("the ", what, " of ", called(X[i])));
  }
}

void check_steps(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& steps) {
  for (std::size_t i = 0; i < X.size(); ++i) {
    const at::Tensor& step = steps[i];
    TORCH_CHECK_VALUE(
        step.is_cpu() && step.numel() == 1 && counts_steps(step.scalar_type()) && linalg::has_memory(step), prefix(),
        "the state step of ", called(X[i]), " must be one integer, FP32 or FP64 number on the CPU, got ",
        step.toString(), " of shape ", step.sizes());
    const double count = step.scalar_type() == at::kFloat ? *step.const_data_ptr<float>() : step.item<double>();
    TORCH_CHECK_VALUE(count >= 0 && count < 0x1p53 && count == std::floor(count), prefix(), "the state step of ",
                      called(X[i]), " must be a whole number from 0, got ", count);
  }
}

void check_steps_on_devices(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& steps) {
  for (std::size_t i = 0; i < X.size(); ++i) {
    const at::Tensor& step = steps[i];
    const bool is_number = step.numel() == 1 && step.scalar_type() == at::kFloat && linalg::has_memory(step);
    TORCH_CHECK_VALUE(is_number && step.device() == X[i].device(), prefix(), "the state step of ", called(X[i]),
                      " must be one FP32 number on ", X[i].device(), " (", captured(), "), got ", step.toString(),
                      " of shape ", step.sizes(), " on ", step.device());
  }
}

void check_gradient(const at::Tensor& X, const at::Tensor& G) {
  check_dense(X, X, "data");
  check_state_sizes(X, X.sizes(), G, "gradient");
  check_dense(X, G, "gradient");
}

void check_state_names(const algorithms::Algorithm& algorithm, const std::vector<std::string>& names,
                       at::IntArrayRef sizes, const std::string& name) {
  const auto has = [&](std::string_view state) { return std::find(names.begin(), names.end(), state) != names.end(); };
  std::string listed;
  for (const std::string& one : names) listed += c10::str(listed.empty() ? "'" : ", '", one, "'");
  for (const algorithms::State& state : algorithm.states) {
    TORCH_CHECK_VALUE(has(state.name), prefix(), "the state of ", name, " of shape ", sizes, " lacks the tensor '",
                      state.name, "': it has ", listed.empty() ? "none" : listed,
                      "; is it the checkpoint of another optimizer or with other options?");
  }
  const algorithms::Algorithm* theirs = nullptr;  // whose these states are, and which of them this one does not have
  std::string_view foreign;
  int64_t most = 0;
  for (const algorithms::Algorithm* other : algorithms::all()) {
    int64_t number = 0;
    std::string_view first;
    for (const algorithms::State& state : other->states) {
      if (!has(state.name)) continue;
      ++number;
      if (first.empty() && algorithms::index_of(algorithm, state.name) < 0) first = state.name;
    }
    if (first.empty() || number < most || (number == most && other->states.size() >= theirs->states.size())) continue;
    theirs = other;
    foreign = first;
    most = number;
  }
  TORCH_CHECK_VALUE(!theirs, prefix(), "the algorithm of ", name, " of shape ", sizes, " must stay ",
                    algorithms::shown(*algorithms::option("algorithm"), theirs->name), ", whose state ", foreign,
                    " it has, got another algorithm or batch_dims in its group, or another shape");
}

void check_state(const at::Tensor& X, const at::Tensor& state, const std::string& what) {
  check_dense(X, state, what);
  TORCH_CHECK_VALUE(!state.is_neg(), prefix(), "the ", what, " of ", called(X), " must not be a negative view");
  TORCH_CHECK_VALUE(state.is_contiguous(), prefix(), "the ", what, " of ", called(X),
                    " must be contiguous, got strides ", state.strides());
}

void check_state_sizes(const at::Tensor& X, at::IntArrayRef sizes, const at::Tensor& state, const std::string& what) {
  TORCH_CHECK_VALUE(state.sizes() == sizes, prefix(), "the ", what, " of ", called(X), " must have ",
                    sizes == X.sizes() ? "that shape" : c10::str("the shape ", sizes), ", got ", state.sizes());
}

void check_number(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(linalg::has_memory(tensor) && !tensor.is_neg(), prefix(), what,
                    " must be a tensor of one real number with memory of its own, got ", tensor.toString());
  TORCH_CHECK_VALUE(tensor.numel() == 1 && !tensor.is_complex(), prefix(), what,
                    " must be a tensor of one real number, got ", tensor.toString(), " of shape ", tensor.sizes());
}

void check_factor_sizes(const std::function<std::string()>& whose, at::IntArrayRef sizes, at::IntArrayRef factor,
                        MatrixForm form, const std::string& what) {
  const std::vector<int64_t> matrices = matrix_sizes(sizes, form);
  const int64_t m = matrices.end()[-2], n = matrices.back(), largest = std::min(m, n), least = largest == 0 ? 0 : 1;
  const at::IntArrayRef stack(matrices.data(), matrices.size() - 2);
  const bool fits = factor.size() == matrices.size() && factor.slice(0, stack.size()) == stack &&
                    (factor.end()[-2] == m || factor.end()[-2] == n) && factor.back() >= least &&
                    factor.back() <= largest;
  if (fits) return;
  std::string counts;
  for (const int64_t count : stack) counts += c10::str(count, ", ");
  const std::string other = m == n ? "" : c10::str(" or [", counts, n, ", r]");
  TORCH_CHECK_VALUE(false, prefix(), "the ", what, " of ", whose(), " must have the shape [", counts, m, ", r]", other,
                    " with ", least, " ≤ r ≤ ", largest, ", got ", factor);
}

}  // namespace torchdion::engine
