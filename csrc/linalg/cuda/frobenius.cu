#include "linalg/cuda/programs/frobenius.h"

#include "linalg/cuda/kernels.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

void frobenius_factors(void* X, Storage storage, int64_t count, int64_t numel, const double* squares, int64_t parts,
                       double slack, void* factors, Stream stream) {
  dispatch(storage, [&](auto entry) {
    using S = decltype(entry);
    using Program = FrobeniusFactors<S>;
    using T = typename Program::T;
    launch(Program{static_cast<S*>(X), numel, parts, squares, static_cast<T*>(factors), slack},
           count * Program::kBlocks, Program::shared_bytes, stream);
  });
}

void add_identity(void* B, const void* A, Storage storage, int64_t count, int64_t p, double a, const void* factors,
                  int power, Stream stream) {
  dispatch(storage, [&](auto entry) {
    using S = decltype(entry);
    using T = typename AddIdentity<S>::T;
    const AddIdentity<S> program{static_cast<S*>(B), static_cast<const S*>(A),       count * p, p,
                                 static_cast<T>(a),  static_cast<const T*>(factors), power};
    launch(program, program.blocks(), 0, stream);
  });
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
