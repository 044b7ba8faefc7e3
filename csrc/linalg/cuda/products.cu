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

// Tensor cores that read BF16 and TF32, also in code that a newer device makes of the PTX of an older one; and room for
// so many blocks that one multiplies while another one's entries are on their way.
bool suits_add_product(int device) {
  using Program = AddProduct<BFloat16>;  // that of FP32 operands takes as much memory
  constexpr int kReserved = 1024;        // by CUDA, of each
  constexpr int kBytes = Program::blocks_at_once * (static_cast<int>(Program::shared_bytes) + kReserved);
  int shared = 0;
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(run_program<Program>)));
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
  using Program = AddProduct<BFloat16>;
  const Program program{
      of<float>(product.C),  of<BFloat16>(product.B), of<BFloat16>(product.A), product.n, product.m, product.k,
      number(product.alpha), number(product.beta),    AddendOf<BFloat16>{}};
  launch(program, product.count * program.blocks_of_one(), Program::shared_bytes, stream);
}

namespace {

// body(an operand of ProductTile) of a list's type.
template <class Body>
void dispatch_operands(const MatrixList& matrices, const Body& body) {
  matrices.storage == Storage::float32 ? body(float()) : body(BFloat16());
}

}  // namespace

void move_by_scaled(const ScaledMoveLists& move, Stream stream) {
  dispatch_operands(move.P, [&](auto operand) {
    using S = decltype(operand);
    const AddProduct<S> program{of<float>(move.X), of<S>(move.P),         of<S>(move.U),
                                move.X.rows,       move.X.cols,           move.U.cols,
                                {0, move.factors}, {0, move.factors + 1}, {of<S>(move.L), move.scales, move.rule}};
    launch(program, move.X.count * program.blocks_of_one(), program.shared_bytes, stream);
  });
}

void move_by_signs(const SignMoveLists& move, Stream stream) {
  dispatch_operands(move.P1, [&](auto operand) {
    using S = decltype(operand);
    const SignUpdate<S> program{of<float>(move.X),
                                of<float>(move.M),
                                of<S>(move.L),
                                of<S>(move.P1),
                                of<S>(move.R),
                                of<S>(move.P2),
                                of<S>(move.V),
                                move.X.rows,
                                move.X.cols,
                                move.R.cols,
                                move.factors,
                                move.rule,
                                static_cast<float>(move.weight),
                                static_cast<float>(move.feedback),
                                move.floor};
    launch(program, move.X.count * program.blocks_of_one(), program.shared_bytes, stream);
  });
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE::kernels
