// Which GPUs have a kernel for symmetric products.
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <exception>
#include <string>

#include "linalg/cuda/kernels.h"
#include "linalg/cuda/operations.h"
#include "linalg/cuda/runtime.h"

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
      at::arange(c10::multiply_integers(sizes), at::TensorOptions(at::kInt).device(at::kCUDA, device)) % 1009;
  return (places * places * 7 + places * 3).remainder(1009).remainder(5).sub(2).to(at::kBFloat16).view(sizes);
}

Operand operand(const at::Tensor& stack, bool transposed) {
  const int64_t stride = stack.size(0) > 1 ? stack.stride(0) : 0;
  return {stack.data_ptr(), stride, nullptr, stack.stride(1), transposed, Storage::bfloat16};
}

// Compares C = 2 A Aᵀ − D with what cuBLAS makes of it in FP32. A stack of matrices with contiguous rows is, to both of
// them, one of transposes: `A_transposed` and `B_transposed` turn these back.
bool is_right(const at::Tensor& A, bool A_transposed, bool B_transposed, const at::Tensor& addend, int device) {
  const at::Tensor given = A.to(at::kFloat), left = A_transposed ? given : given.mT();
  const int64_t count = left.size(0), p = left.size(1);
  const at::Tensor C = at::full({count, p, p}, -1, A.options());
  Product product{
      p,   p,  left.size(2),    count, operand(A, A_transposed), operand(A, B_transposed), operand(C, false),
      {2}, {}, Arithmetic::bf16};
  product.symmetric = true;
  if (addend.defined()) {
    product.addend = operand(addend, false);
    product.beta.value = -1;
  }
  multiply_symmetric(product, device);
  const at::Tensor expected = addend.defined() ? addend.to(at::kFloat) : at::empty({count, p, p}, left.options());
  Operations::gemm_(Matrices(expected), Matrices(left), Matrices(left.mT()), 2, product.beta.value, Precision::highest);
  return at::equal(C, expected.to(at::kBFloat16));
}

// Sides that are no multiples of a tile; more tiles than a B200 has clusters at once, and one matrix within a larger
// one.
bool are_right(int device) {
  const at::Tensor half = small_integers({52, 264, 264}, device).tril(), S = (half + half.mT()).contiguous();
  return is_right(small_integers({26, 520, 72}, device), true, false, {}, device) &&
         is_right(small_integers({1, 72, 272}, device).narrow(2, 0, 264), false, true, {}, device) &&
         is_right(S, false, false, S, device);
}

enum class Answer { unknown, no, yes };

// The answer stays unknown while memory is short, and cuBLAS does the work meanwhile.
Answer ask(int device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device);
  if (!kernel_of(properties)) return Answer::no;
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  std::string problem = "are wrong";
  try {
    if (are_right(device)) return Answer::yes;
  } catch (const c10::OutOfMemoryError&) {
    return Answer::unknown;
  } catch (const std::exception& error) {
    problem = std::string("fail (") + error.what() + ")";
  }
  TORCH_WARN("torchdion: its kernels for symmetric products ", problem, " on ", properties.name,
             ". cuBLAS computes these products instead; please report this");
  return Answer::no;
}

}  // namespace

// The first question for a device, which may be two threads', runs its kernels. A graph that is captured before that
// has cuBLAS's products: nothing can be waited for meanwhile.
bool multiplies_symmetric(int device) {
  constexpr size_t kDevices = 64;
  static std::array<std::atomic<Answer>, kDevices> answers{};
  std::atomic<Answer>& known = answers.at(static_cast<size_t>(device));
  if (known == Answer::unknown && !is_capturing(device)) known = ask(device);
  return known == Answer::yes;
}

void multiply_symmetric(const Product& product, int device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device);
  kernel_of(properties)(product, properties.multiProcessorCount, current_stream(device));
}

}  // namespace torchdion::linalg::cuda
