#include "linalg/cuda/runtime.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

namespace torchdion::linalg::cuda {

namespace {

cudaDataType_t data_type(Storage storage) {
  switch (storage) {
    case Storage::float64:
      return CUDA_R_64F;
    case Storage::float32:
      return CUDA_R_32F;
    case Storage::float16:
      return CUDA_R_16F;
    case Storage::bfloat16:
      return CUDA_R_16BF;
  }
  TORCH_INTERNAL_ASSERT(false);
}

// Products of 16-bit operands round nothing on their way into the tensor cores.
cublasComputeType_t compute_type(const Product& product) {
  if (product.A.storage != Storage::float32) {
    return product.arithmetic == Arithmetic::fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  }
  switch (product.arithmetic) {
    case Arithmetic::tf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Arithmetic::bf16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
    default:
      return CUBLAS_COMPUTE_32F;
  }
}

// A 16-bit C is rounded once: no partial sum may be.
constexpr auto kMathMode =
    static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);

// The handle as the product needs it, and afterwards as it was. torch sets the mode by its global flag for TF32, which
// says nothing about ours.
class HandleModes {
 public:
  HandleModes(cublasHandle_t handle, bool device_scalars) : handle_(handle) {
    TORCH_CUDABLAS_CHECK(cublasGetMathMode(handle, &math_));
    TORCH_CUDABLAS_CHECK(cublasGetPointerMode(handle, &pointers_));
    TORCH_CUDABLAS_CHECK(cublasSetMathMode(handle, kMathMode));
    TORCH_CUDABLAS_CHECK(
        cublasSetPointerMode(handle, device_scalars ? CUBLAS_POINTER_MODE_DEVICE : CUBLAS_POINTER_MODE_HOST));
  }
  HandleModes(const HandleModes&) = delete;
  ~HandleModes() {
    cublasSetMathMode(handle_, math_);
    cublasSetPointerMode(handle_, pointers_);
  }

 private:
  cublasHandle_t handle_;
  cublasMath_t math_;
  cublasPointerMode_t pointers_;
};

// A scalar where cuBLAS looks for it.
class ScalarMemory {
 public:
  ScalarMemory(const Scalar& scalar, bool in_double)
      : device_(scalar.device),
        in_double_(in_double),
        double_(scalar.value),
        float_(static_cast<float>(scalar.value)) {}
  const void* get() const {
    if (device_) return device_;
    return in_double_ ? static_cast<const void*>(&double_) : &float_;
  }

 private:
  const void* device_;
  bool in_double_;
  double double_;
  float float_;
};

cublasOperation_t operation(const Operand& operand) { return operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

Stream current_stream(int device) {
  return at::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

bool is_capturing(int device) {
  cudaStreamCaptureStatus status{};
  C10_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(current_stream(device)), &status));
  return status != cudaStreamCaptureStatusNone;
}

void multiply(const Product& product, int device) {
  record_product(product);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  const HandleModes modes(handle, product.alpha.device != nullptr);
  const bool in_double = product.arithmetic == Arithmetic::fp64;
  const ScalarMemory alpha(product.alpha, in_double), beta(product.beta, in_double);
  const Operand &A = product.A, &B = product.B, &C = product.C;
  const cublasComputeType_t compute = compute_type(product);
  if (C.list) {
    TORCH_CUDABLAS_CHECK(
        cublasGemmBatchedEx_64(handle, operation(A), operation(B), product.m, product.n, product.k, alpha.get(), A.list,
                               data_type(A.storage), A.leading, B.list, data_type(B.storage), B.leading, beta.get(),
                               C.list, data_type(C.storage), C.leading, product.count, compute, CUBLAS_GEMM_DEFAULT));
  } else {
    TORCH_CUDABLAS_CHECK(cublasGemmStridedBatchedEx_64(
        handle, operation(A), operation(B), product.m, product.n, product.k, alpha.get(), A.data, data_type(A.storage),
        A.leading, A.stride, B.data, data_type(B.storage), B.leading, B.stride, beta.get(), C.data,
        data_type(C.storage), C.leading, C.stride, product.count, compute, CUBLAS_GEMM_DEFAULT));
  }
}

}  // namespace torchdion::linalg::cuda
