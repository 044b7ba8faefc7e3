// Lion and AdamW on the CPU: one loop for every rule.
#include "linalg/elementwise.h"

#include <array>
#include <utility>

#include "linalg/cpu/least_momentum.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/rates.h"
#include "linalg/cpu/runs.h"
#include "linalg/rules/adamw.h"
#include "linalg/rules/lion.h"

namespace torchdion::linalg::cpu {

namespace {

template <class Rule>
Rule prepared(const ElementwiseLists& lists, std::size_t i, const typename Rule::Hyperparameters& hyper) {
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
  return Rule(hyper, least, corrections.data());
}

template <class Rule, std::size_t... State>
void update(const ElementwiseLists& lists, std::size_t i, const typename Rule::Hyperparameters& hyper,
            std::index_sequence<State...>) {
  using T = typename Rule::Number;
  const double factor = lists.rule.total_factor();
  const T alpha = static_cast<T>(hyper.maximize ? -factor : factor);
  const Rule rule = prepared<Rule>(lists, i, hyper);
  for_each_run<T>(lists.G[i], lists.rule.zeroed, [&](int64_t begin, int64_t count, const Run<T>& gradient) {
    const Run<T> x(lists.X[i], begin, count), states[] = {Run<T>(lists.states[State][i], begin, count)...};
    for (int64_t j = 0; j < count; ++j) rule(x[j], alpha * gradient[j], states[State][j]...);
    x.store();
    (states[State].store(), ...);
  });
}

template <template <class> class Rule, class Hyperparameters>
void update_all(const ElementwiseLists& lists, const Hyperparameters& hyper) {
  if (lists.rule.leaves_out()) return;
  const Hyperparameters read = with_multipliers(hyper, lists.multipliers);
  constexpr auto states = std::make_index_sequence<Rule<float>::states>();
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    if (lists.X[i].scalar_type() == at::kDouble) {
      update<Rule<double>>(lists, i, read, states);
    } else {
      update<Rule<float>>(lists, i, read, states);
    }
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
