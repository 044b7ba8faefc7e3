#include "linalg/cpu/operations.h"
#include "linalg/cpu/rates.h"
#include "linalg/cpu/runs.h"

namespace torchdion::linalg::cpu {

namespace {

template <class T>
void update(const at::Tensor& X, const at::Tensor& G, const at::Tensor& M, const at::Tensor& V, int64_t step,
            const GradientRule& rule, const AdamWHyperparameters& hyper) {
  // With the bias corrections 1 − βᵢᵗ of both moments.
  const double correction1 = 1 - std::pow(hyper.beta1, step), correction2 = 1 - std::pow(hyper.beta2, step);
  const T keep = static_cast<T>(1 - hyper.lr * hyper.weight_decay), lr = static_cast<T>(hyper.lr / correction1);
  const T root2 = static_cast<T>(std::sqrt(correction2)), epsilon = static_cast<T>(hyper.epsilon);
  const T beta1 = static_cast<T>(hyper.beta1), rest1 = static_cast<T>(1 - hyper.beta1);
  const T beta2 = static_cast<T>(hyper.beta2), rest2 = static_cast<T>(1 - hyper.beta2);
  const T alpha = static_cast<T>(hyper.maximize ? -rule.total_factor() : rule.total_factor());
  for_each_run<T>(G, rule.zeroed, [&](int64_t begin, int64_t count, const Run<T>& gradient) {
    const Run<T> x(X, begin, count), m(M, begin, count), v(V, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const T g = alpha * gradient[i];
      m[i] = beta1 * m[i] + rest1 * g;
      v[i] = beta2 * v[i] + rest2 * g * g;
      x[i] = keep * x[i] - lr * m[i] / (std::sqrt(v[i]) / root2 + epsilon);
    }
    x.store();
    m.store();
    v.store();
  });
}

}  // namespace

void Operations::adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper) {
  if (lists.rule.leaves_out()) return;
  const AdamWHyperparameters read = with_multipliers(hyper, lists.multipliers);
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    const auto update_tensor = lists.X[i].scalar_type() == at::kDouble ? update<double> : update<float>;
    const int64_t step = lists.device_step.empty() ? lists.step[i] : static_cast<int64_t>(*lists.device_step[i]) + 1;
    update_tensor(lists.X[i], lists.G[i], lists.M[i], lists.V[i], step, lists.rule, read);
  }
}

}  // namespace torchdion::linalg::cpu
