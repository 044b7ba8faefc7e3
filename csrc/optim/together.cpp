// What ranks do together besides stepping.
#include <algorithm>

#include "one_sentence.h"
#include "optim/private.h"
#include "words.h"

namespace torchdion {

void Optimizer::synchronize_for_checkpoint() try {
  const Speaking speaking(held().words(*this));
  const auto averages = [](const auto& item) { return !item.second.replicas.absent(); };
  if (std::none_of(held().layouts.begin(), held().layouts.end(), averages)) return held().core.refuse_if_broken();
  optim::Front front = held().front(*this);
  held().core.synchronize_for_checkpoint(front);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::check_replicas(const Axis& copies) const try {
  const Speaking speaking(held().words(*this));
  optim::Front front = held().front(*this);
  held().core.check_replicas(front, copies);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::synchronize_replicas(const Axis& copies) try {
  const Speaking speaking(held().words(*this));
  optim::Front front = held().front(*this);
  held().core.synchronize_replicas(front, copies);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

void Optimizer::resize_rank() try {
  const Speaking speaking(held().words(*this));
  optim::Front front = held().front(*this);
  held().core.resize_rank(front);
} catch (const c10::Error&) {
  rethrow_in_one_sentence();
}

}  // namespace torchdion
