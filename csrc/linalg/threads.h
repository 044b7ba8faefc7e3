// How many cores a thread computes on.
#pragma once

namespace torchdion::linalg {

// This thread computes on one from now on, whatever torch.set_num_threads says of others: beside a thread that uses
// all cores, a second team would wait for it at every turn.
void compute_on_one_core();

}  // namespace torchdion::linalg
