// Lion and AdamW on the CPU: one loop for every rule, to which it hands short runs of elements in the computing type,
// whatever types the tensors are stored in.
#include "linalg/elementwise.h"

#include <ATen/Parallel.h>

#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/rules/adamw.h"
#include "linalg/rules/lion.h"

namespace torchdion::linalg::cpu {

namespace {

constexpr int64_t kRun = 1024;  // elements: a few runs fit the first-level cache
constexpr int64_t kRunsPerThread = 16;

// A run of a contiguous tensor as T: the elements where they lie, or a copy that store() rounds back.
template <class T>
class Run {
 public:
  Run(const at::Tensor& tensor, int64_t begin, int64_t count) : tensor_(tensor), begin_(begin), count_(count) {
    TORCHDION_DISPATCH_FLOATING(tensor.scalar_type(), "torchdion::Run", [&] {
      scalar_t* source = static_cast<scalar_t*>(tensor.data_ptr()) + begin;
      if constexpr (std::is_same_v<scalar_t, T>) {
        data_ = source;
      } else {
        for (int64_t i = 0; i < count; ++i) copy_[i] = static_cast<T>(source[i]);
        data_ = copy_.data();
      }
    });
  }
  Run(const Run&) = delete;

  T* data() const { return data_; }

  // A copy in which entries that are not finite are zero; returns how many were.
  int64_t zero_nonfinite() {
    int64_t found = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const bool finite = std::isfinite(data_[i]);
      found += !finite;
      copy_[i] = finite ? data_[i] : T(0);
    }
    data_ = copy_.data();
    return found;
  }

  void store() const {
    TORCHDION_DISPATCH_FLOATING(tensor_.scalar_type(), "torchdion::Run", [&] {
      if constexpr (!std::is_same_v<scalar_t, T>) {
        scalar_t* target = static_cast<scalar_t*>(tensor_.data_ptr()) + begin_;
        for (int64_t i = 0; i < count_; ++i) target[i] = rounded<scalar_t>(copy_[i]);
      }
    });
  }

 private:
  const at::Tensor& tensor_;
  int64_t begin_, count_;
  T* data_ = nullptr;
  std::array<T, kRun> copy_;
};

// Calls body(begin, count, gradient) for runs that cover every element once, in parallel. Where `zeroed` is there,
// entries of the gradient that are not finite count as zero, and *zeroed grows by as many.
template <class T, class Body>
void for_each_run(const at::Tensor& gradient, int64_t* zeroed, const Body& body) {
  const int64_t numel = gradient.numel();
  std::atomic<int64_t> found{0};
  at::parallel_for(0, (numel + kRun - 1) / kRun, kRunsPerThread, [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      const int64_t begin = run * kRun, count = std::min(kRun, numel - begin);
      Run<T> g(gradient, begin, count);
      if (zeroed) found += g.zero_nonfinite();
      body(begin, count, g);
    }
  });
  if (zeroed) *zeroed += found;
}

template <class Rule>
Rule prepared(const ElementwiseLists& lists, std::size_t i, const typename Rule::Hyperparameters& hyper, Rates rates) {
  std::array<double, Rule::corrections> corrections;
  if constexpr (Rule::corrections > 0) {
    const int64_t step = lists.device_step.empty() ? lists.step[i] : static_cast<int64_t>(*lists.device_step[i]) + 1;
    for (int c = 0; c < Rule::corrections; ++c) {
      corrections[c] = Rule::correction(hyper, static_cast<double>(step), c);
    }
  }
  double least = 0;
  TORCHDION_DISPATCH_FLOATING(lists.states.front()[i].scalar_type(), "torchdion::elementwise",
                              [&] { least = least_momentum<scalar_t>(); });
  return Rule(hyper, rates, least, corrections.data());
}

// One run, whose tensors share no memory.
template <Decay decay, class Rule, class T, class... States>
[[gnu::always_inline]] inline void update_entries(const Rule& rule, int64_t count, T alpha, T* __restrict x,
                                                  const T* __restrict g, States* __restrict... states) {
  for (int64_t j = 0; j < count; ++j) rule.template update<decay>(x[j], alpha * g[j], states[j]...);
}

template <class Rule, Decay decay, std::size_t... State>
void update(const ElementwiseLists& lists, std::size_t i, const typename Rule::Hyperparameters& hyper, Rates rates,
            std::index_sequence<State...>) {
  using T = typename Rule::Number;
  const T alpha = static_cast<T>(lists.rule.total_factor());
  const Rule rule = prepared<Rule>(lists, i, hyper, rates);
  for_each_run<T>(lists.G[i], lists.rule.zeroed, [&](int64_t begin, int64_t count, const Run<T>& gradient) {
    const Run<T> x(lists.X[i], begin, count), states[] = {Run<T>(lists.states[State][i], begin, count)...};
    with_wide_vectors([&]() __attribute__((always_inline)) {
      update_entries<decay>(rule, count, alpha, x.data(), gradient.data(), states[State].data()...);
    });
    x.store();
    (states[State].store(), ...);
  });
}

template <template <class> class Rule, class Hyperparameters>
void update_all(const ElementwiseLists& lists, const Hyperparameters& hyper) {
  if (lists.rule.frozen.all()) return;
  const Rates rates = lists.factors.rates_on_host();
  constexpr auto states = std::make_index_sequence<Rule<float>::states>();
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    with_constant(lists.decay, [&](auto decay) {
      const bool in_double = lists.X[i].scalar_type() == at::kDouble;
      in_double ? update<Rule<double>, decay()>(lists, i, hyper, rates, states)
                : update<Rule<float>, decay()>(lists, i, hyper, rates, states);
    });
  }
}

}  // namespace

void Operations::lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper) {
  update_all<LionRule>(lists, hyper);
}

void Operations::adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper) {
  update_all<AdamWRule>(lists, hyper);
}

}  // namespace torchdion::linalg::cpu
