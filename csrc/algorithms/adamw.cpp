#include "algorithms/elementwise.h"

namespace torchdion::algorithms {

comm::Task<> adamw(ElementwiseBatch batch, AdamWHyperparameters hyper) {
  if (!batch.replicas.absent()) {
    co_await average_gradients(batch);
    batch.lists.rule.zeroed = nullptr;  // done
  }
  linalg::adamw_(batch.lists, hyper);
}

}  // namespace torchdion::algorithms
