#include "algorithms/batch.h"

#include <ATen/ops/cat.h>

#include "algorithms/shared.h"

namespace torchdion::algorithms {

Batch as_asked(Batch batch, const Options& options) {
  if (!batch.marks.empty()) {
    batch.unchanged = at::cat(batch.marks);
    batch.frozen.unchanged = batch.unchanged.const_data_ptr<float>();
  }
  if (options.flag("maximize")) batch.gradients.factor *= -1;
  batch.factors.rates = {options.number("lr"), options.number("weight_decay")};
  batch.direction.decay = decay_asked(options);
  batch.gradients.frozen = batch.factors.frozen = batch.direction.frozen = batch.frozen;
  return batch;
}

}  // namespace torchdion::algorithms
