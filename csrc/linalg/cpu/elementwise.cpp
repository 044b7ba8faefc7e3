// Lion and AdamW on the CPU: one loop for every rule.
#include "linalg/elementwise.h"

#include <array>
#include <utility>

#include "linalg/cpu/avx512.h"
#include "linalg/cpu/bfloat16_products.h"
#include "linalg/cpu/least_momentum.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/rates.h"
#include "linalg/cpu/runs.h"
#include "linalg/rules/adamw.h"
#include "linalg/rules/lion.h"

namespace torchdion::linalg::cpu {

namespace {

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

#if defined(__x86_64__)

// The same loop, for processors that do sixteen entries at a time.
template <Decay decay, class Rule, class T, class... States>
TORCHDION_AVX512 void update_avx512(const Rule& rule, int64_t count, T alpha, T* x, const T* g, States*... states) {
  update_entries<decay>(rule, count, alpha, x, g, states...);
}

#endif

template <Decay decay, class Rule, class T, class... States>
void update_run(const Rule& rule, int64_t count, T alpha, T* x, const T* g, States*... states) {
#if defined(__x86_64__)
  if (has_bfloat16_products()) return update_avx512<decay>(rule, count, alpha, x, g, states...);
#endif
  update_entries<decay>(rule, count, alpha, x, g, states...);
}

template <class Rule, Decay decay, std::size_t... State>
void update(const ElementwiseLists& lists, std::size_t i, const typename Rule::Hyperparameters& hyper, Rates rates,
            std::index_sequence<State...>) {
  using T = typename Rule::Number;
  const T alpha = static_cast<T>(lists.rule.total_factor());
  const Rule rule = prepared<Rule>(lists, i, hyper, rates);
  for_each_run<T>(lists.G[i], lists.rule.zeroed, [&](int64_t begin, int64_t count, const Run<T>& gradient) {
    const Run<T> x(lists.X[i], begin, count), states[] = {Run<T>(lists.states[State][i], begin, count)...};
    update_run<decay>(rule, count, alpha, x.data(), gradient.data(), states[State].data()...);
    x.store();
    (states[State].store(), ...);
  });
}

template <template <class> class Rule, class Hyperparameters>
void update_all(const ElementwiseLists& lists, const Hyperparameters& hyper) {
  if (lists.rule.frozen.all()) return;
  const Rates rates = rates_of(lists.factors);
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
