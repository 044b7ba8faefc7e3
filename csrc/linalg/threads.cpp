#include "linalg/threads.h"

#include <ATen/Parallel.h>
#include <omp.h>

// Where torch's BLAS is MKL, it counts threads for itself.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int);

namespace torchdion::linalg {

void compute_on_one_core() {
  (void)at::get_num_threads();  // at its first use on a thread, torch sets the number of all
  omp_set_num_threads(1);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(1);
}

}  // namespace torchdion::linalg
