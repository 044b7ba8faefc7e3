#include "linalg/cuda/programs/top_k.h"

#include "linalg/cuda/kernels.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

template <class T>
void top_k(T* chosen, const T* entries, int64_t count, int64_t size, int64_t k, Stream stream) {
  launch(TopK<T>{entries, chosen, size, k}, count, TopK<T>::shared_bytes, stream);
}
template void top_k(float*, const float*, int64_t, int64_t, int64_t, Stream);
template void top_k(double*, const double*, int64_t, int64_t, int64_t, Stream);

void choose_rows(int32_t* rows, int32_t* slots, const double* norms, int64_t count, int64_t size, int64_t k,
                 Stream stream) {
  launch(ChooseRows{norms, rows, slots, size, k}, count, ChooseRows::shared_bytes, stream);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
