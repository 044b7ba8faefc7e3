// The kernels of products that large matrices are updated by.
#include <array>
#include <atomic>

#include "linalg/cuda/kernels.h"
#include "linalg/cuda/programs/add_product.h"
#include "linalg/cuda/programs/sign_update.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels {

namespace {

template <class S>
MatrixOf<S> of(const Operand& operand) {
  return {static_cast<S*>(operand.data), operand.stride, operand.list, operand.leading};
}

template <class S>
MatrixOf<S> of(const MatrixList& matrices) {
  return {nullptr, 0, matrices.data, matrices.strides.row};
}

NumberOf number(const Scalar& scalar) {
  return {static_cast<float>(scalar.value), static_cast<const float*>(scalar.device)};
}

}  // namespace

#ifdef __CUDACC__
namespace {

// Tensor cores that read BF16, also in code that a newer device makes of the PTX of an older one; and room for so many
// blocks that one multiplies while another one's entries are on their way.
bool suits_add_product(int device) {
  constexpr int kReserved = 1024;  // by CUDA, of each
  constexpr int kBytes = AddProduct::blocks_at_once * (static_cast<int>(AddProduct::shared_bytes) + kReserved);
  int shared = 0;
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(run_program<AddProduct>)));
  return attributes.ptxVersion >= 80 && shared >= kBytes;
}

}  // namespace

bool adds_products(int device) {
  enum Answer { unknown, no, yes };
  constexpr size_t kDevices = 64;
  static std::array<std::atomic<int>, kDevices> answers{};
  std::atomic<int>& known = answers.at(static_cast<size_t>(device));
  if (known == unknown) known = suits_add_product(device) ? yes : no;
  return known == yes;
}
#else
bool adds_products(int) { return true; }
#endif

void add_product(const Product& product, Stream stream) {
  const AddProduct program{of<float>(product.C),
                           of<BFloat16>(product.B),
                           of<BFloat16>(product.A),
                           product.n,
                           product.m,
                           product.k,
                           number(product.alpha),
                           number(product.beta),
                           AddendOf{}};
  launch(program, product.count * program.blocks_of_one(), AddProduct::shared_bytes, stream);
}

void move_by_scaled(const ScaledMoveLists& move, Stream stream) {
  const AddProduct program{of<float>(move.X),
                           of<BFloat16>(move.P),
                           of<BFloat16>(move.U),
                           move.rows,
                           move.cols,
                           move.depth,
                           {0, move.factors},
                           {0, move.factors + 1},
                           {of<BFloat16>(move.L), move.scales, move.unchanged, move.cautious}};
  launch(program, move.count * program.blocks_of_one(), AddProduct::shared_bytes, stream);
}

void move_by_signs(const SignMoveLists& move, Stream stream) {
  const SignUpdate program{of<float>(move.X),
                           of<float>(move.M),
                           of<BFloat16>(move.L),
                           of<BFloat16>(move.P1),
                           of<BFloat16>(move.R),
                           of<BFloat16>(move.P2),
                           of<BFloat16>(move.V),
                           move.rows,
                           move.cols,
                           move.depth,
                           move.factors,
                           move.unchanged,
                           static_cast<float>(move.weight),
                           static_cast<float>(move.feedback),
                           move.floor,
                           move.cautious};
  launch(program, move.count * program.blocks_of_one(), SignUpdate::shared_bytes, stream);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
