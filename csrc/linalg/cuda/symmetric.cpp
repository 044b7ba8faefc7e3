#include "linalg/cuda/symmetric.h"

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "linalg/cuda/kernels.h"

namespace torchdion::linalg::cuda {

namespace {

using Kernel = void (*)(const Product& product, int processors, Stream stream);

// Null: there is none for this device.
Kernel kernel_of([[maybe_unused]] const cudaDeviceProp& device) {
#ifdef TORCHDION_SYMMETRIC_SM90
  if (device.major == 9 && device.minor == 0) return kernels::multiply_symmetric_sm90;
#endif
#ifdef TORCHDION_SYMMETRIC_SM100
  if (device.major == 10 && device.minor == 0) return kernels::multiply_symmetric_sm100;
#endif
  return nullptr;
}

// From −2 to 2: what is made of them has the same bits in every order of sums.
at::Tensor small_integers(at::IntArrayRef sizes, int device) {
  const at::Tensor places =
      at::arange(c10::multiply_integers(sizes), at::TensorOptions(at::kLong).device(at::kCUDA, device));
  return (places * places * 7 + places * 3).remainder(1009).remainder(5).sub(2).to(at::kBFloat16).view(sizes);
}

Operand operand(const at::Tensor& stack, bool transposed) {
  return {stack.data_ptr(), stack.stride(0), nullptr, stack.stride(1), transposed, Storage::bfloat16};
}

// C = 2 A B − D of matrices with contiguous rows as cuBLAS describes them, column by column.
bool is_right(const at::Tensor& A, bool A_transposed, bool B_transposed, const at::Tensor& addend, int device) {
  const at::Tensor given = A.to(at::kDouble), left = A_transposed ? given : given.mT();
  const int64_t p = left.size(1);
  const at::Tensor C = at::empty({A.size(0), p, p}, A.options()).fill_(-1);
  Product product;
  product.m = product.n = p;
  product.k = left.size(2);
  product.count = A.size(0);
  product.A = operand(A, A_transposed);
  product.B = operand(A, B_transposed);
  product.C = operand(C, false);
  product.alpha.value = 2;
  product.arithmetic = Arithmetic::bf16;
  product.symmetric = true;
  at::Tensor expected = left.matmul(left.mT()).mul_(2);
  if (addend.defined()) {
    product.addend = operand(addend, false);
    product.beta.value = -1;
    expected.sub_(addend);
  }
  multiply_symmetric(product, device);
  return at::equal(C, expected.to(at::kBFloat16));
}

// Of ragged sizes, and with more tiles than there are blocks at once.
bool are_right(int device) {
  constexpr int64_t kCount = 16, kSide = 520, kInner = 136;
  const at::Tensor X = small_integers({kCount, kSide, kInner}, device),
                   turned = small_integers({kCount, kInner, kSide}, device),
                   half = small_integers({kCount, kSide, kSide}, device).tril(), S = half + half.mT();
  return is_right(X, true, false, {}, device) && is_right(turned, false, true, {}, device) &&
         is_right(S, false, false, S, device);
}

bool are_right_or_warns(int device) {
  std::string problem;
  try {
    if (are_right(device)) return true;
    problem = "are wrong";
  } catch (const std::exception& error) {
    problem = std::string("fail (") + error.what() + ")";
  }
  TORCH_WARN("torchdion: its kernels for symmetric products ", problem, " on ",
             at::cuda::getDeviceProperties(device)->name,
             ", and cuBLAS computes these products instead: please report this");
  return false;
}

}  // namespace

// The first question for a device runs its kernels once. While a graph is captured that cannot be waited for.
bool multiplies_symmetric(int device) {
  enum Answer { unknown, no, yes };
  constexpr size_t kDevices = 64;
  static std::array<std::atomic<int>, kDevices> answers{};
  static std::mutex mutex;
  std::atomic<int>& known = answers.at(static_cast<size_t>(device));
  if (known == unknown && !is_capturing(device)) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (known == unknown) {
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
      known = kernel_of(*at::cuda::getDeviceProperties(device)) && are_right_or_warns(device) ? yes : no;
    }
  }
  return known == yes;
}

void multiply_symmetric(const Product& product, int device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device);
  kernel_of(properties)(product, properties.multiProcessorCount, current_stream(device));
}

}  // namespace torchdion::linalg::cuda
