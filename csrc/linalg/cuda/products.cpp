// Products as recorders list them.
#include "linalg/cuda/lower_tiles.h"
#include "linalg/cuda/runtime.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

int64_t size_of(Storage storage) {
  int64_t size = 0;
  dispatch(storage, [&](auto entry) { size = sizeof entry; });
  return size;
}

// The kernels and what they compute in: 16-bit operands are rounded no further.
const char* name_of(const Product& product) {
  if (product.symmetric) return "symmetric BF16";
  if (product.A.storage == Storage::bfloat16) return "cuBLAS BF16";
  if (product.A.storage == Storage::float16) return "cuBLAS FP16";
  switch (product.arithmetic) {
    case Arithmetic::fp64:
      return "cuBLAS FP64";
    case Arithmetic::fp32:
      return "cuBLAS FP32";
    case Arithmetic::tf32:
      return "cuBLAS TF32";
    default:
      return "cuBLAS BF16";
  }
}

bool is_same(const Operand& a, const Operand& b) {
  return a.list == b.list && (a.list || (a.data == b.data && a.stride == b.stride));
}

}  // namespace

Work work_of(const Product& product) {
  const int64_t m = product.m, n = product.n, k = product.k;
  const auto bytes = [&](const Operand& operand, int64_t entries) {
    const bool is_one = !operand.list && operand.stride == 0;
    return (is_one ? 1 : product.count) * entries * size_of(operand.storage);
  };
  const bool adds = product.beta.device || product.beta.value != 0;
  const Operand& addend = product.addend.data ? product.addend : product.C;
  const bool is_read = !adds || is_same(addend, product.A) || is_same(addend, product.B);  // once as it is
  const int64_t of_A = bytes(product.A, m * k), of_B = is_same(product.A, product.B) ? 0 : bytes(product.B, k * n);
  const int64_t computed = product.symmetric ? count_lower_entries(m) : m * n;
  const int64_t of_addend = is_read ? 0 : bytes(addend, computed);
  return {of_A + of_B + of_addend + bytes(product.C, m * n), product.count * 2 * computed * k};
}

void record_product(const Product& product) {
  if (!is_recording()) return;
  Launches launched{name_of(product), 0, 0, work_of(product)};
  launched.product = {product.m, product.n, product.k, product.count, product.C.list != nullptr};
  record(launched);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
