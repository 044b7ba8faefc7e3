#include "algorithms/elementwise.h"

#include "comm/sums.h"
#include "linalg/accumulate.h"

namespace torchdion::algorithms {

using linalg::Matrices;

comm::Task<> average_gradients(Batch batch) {
  const Axis replicas = batch.layout.replicas;
  if (replicas.absent()) co_return;
  linalg::GradientRule rule;
  rule.factor = 1.0 / replicas.size;
  rule.zeroed = batch.gradients.zeroed;
  for (std::size_t i = 0; i < batch.own.size(); ++i) {
    const Matrices mean(batch.lists.G[i].view({1, -1})), own(batch.own[i].view({1, -1}));
    linalg::accumulate_(mean, own, rule);
  }
  co_await comm::sum(batch.mean, replicas, comm::Order::any);
}

linalg::ElementwiseLists lists_of(const Batch& batch) {
  linalg::ElementwiseLists lists = batch.lists;
  lists.rule = batch.gradients;
  if (!batch.layout.replicas.absent()) lists.rule.zeroed = nullptr;
  lists.decay = batch.direction.decay;
  lists.factors = batch.factors;
  return lists;
}

Cost elementwise_cost(const BatchShape& shape, const Layout& layout, const Options&) {
  const int64_t computing = element_size(shape.computing);
  const int64_t parameter = element_size(shape.parameter);
  int64_t states = 0;
  for (const at::ScalarType state : shape.states) states += element_size(state);
  Cost cost;
  cost.memory_bytes = shape.numel * (2 * states + 3 * parameter);
  if (!layout.replicas.absent()) cost.replicas = all_reduced(shape.numel, computing, layout.replicas);
  return cost;
}

}  // namespace torchdion::algorithms
