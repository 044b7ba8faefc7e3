#include "algorithms/elementwise.h"

namespace torchdion::algorithms {

comm::Task<> lion(ElementwiseBatch batch, LionHyperparameters hyper) {
  if (!batch.replicas.absent()) {
    co_await average_gradients(batch);
    batch.lists.rule.zeroed = nullptr;  // done
  }
  linalg::lion_(batch.lists, hyper);
}

}  // namespace torchdion::algorithms
