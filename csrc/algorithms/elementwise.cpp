#include "algorithms/elementwise.h"

#include "comm/sums.h"
#include "linalg/accumulate.h"

namespace torchdion::algorithms {

using linalg::Matrices;

comm::Task<> average_gradients(ElementwiseBatch batch) {
  linalg::GradientRule rule;
  rule.factor = 1.0 / batch.replicas.size;
  rule.zeroed = batch.lists.rule.zeroed;
  for (std::size_t i = 0; i < batch.own.size(); ++i) {
    const Matrices mean(batch.lists.G[i].view({1, -1})), own(batch.own[i].view({1, -1}));
    linalg::accumulate_(mean, own, rule);
  }
  co_await comm::sum(batch.mean, batch.replicas, comm::Order::any);
}

}  // namespace torchdion::algorithms
