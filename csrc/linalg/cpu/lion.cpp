#include "linalg/cpu/least_momentum.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/rates.h"
#include "linalg/cpu/runs.h"

namespace torchdion::linalg::cpu {

namespace {

template <class T>
void update(const at::Tensor& X, const at::Tensor& G, const at::Tensor& M, const GradientRule& rule,
            const LionHyperparameters& hyper) {
  const T keep = static_cast<T>(1 - hyper.lr * hyper.weight_decay), lr = static_cast<T>(hyper.lr);
  const T beta1 = static_cast<T>(hyper.beta1), rest1 = static_cast<T>(1 - hyper.beta1);
  const T beta2 = static_cast<T>(hyper.beta2), rest2 = static_cast<T>(1 - hyper.beta2);
  const T alpha = static_cast<T>(hyper.maximize ? -rule.total_factor() : rule.total_factor());
  T least = 0;
  TORCHDION_DISPATCH_FLOATING(M.scalar_type(), "torchdion::lion_", [&] { least = least_momentum<scalar_t>(); });
  for_each_run<T>(G, rule.zeroed, [&](int64_t begin, int64_t count, const Run<T>& gradient) {
    const Run<T> x(X, begin, count), m(M, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const T g = alpha * gradient[i];
      const T mixed = beta1 * m[i] + rest1 * g;
      const T sign = mixed > 0 ? T(1) : mixed < 0 ? T(-1) : mixed;  // a NaN stays one: it must reach the weights
      x[i] = keep * x[i] - lr * sign;
      m[i] = zero_below(least, beta2 * m[i] + rest2 * g);
    }
    x.store();
    m.store();
  });
}

}  // namespace

void Operations::lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper) {
  if (lists.rule.leaves_out()) return;
  const LionHyperparameters read = with_multipliers(hyper, lists.multipliers);
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    const auto update_tensor = lists.X[i].scalar_type() == at::kDouble ? update<double> : update<float>;
    update_tensor(lists.X[i], lists.G[i], lists.M[i], lists.rule, read);
  }
}

}  // namespace torchdion::linalg::cpu
