#include "linalg/cuda/runtime.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

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
  if (product.arithmetic == Arithmetic::tf32) return CUBLAS_COMPUTE_32F_FAST_TF32;
  return product.arithmetic == Arithmetic::bf16 ? CUBLAS_COMPUTE_32F_FAST_16BF : CUBLAS_COMPUTE_32F;
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
      : scalar_(scalar), in_double_(in_double), in_fp32_(static_cast<float>(scalar.value)) {}
  const void* get() const {
    if (scalar_.device) return scalar_.device;
    return in_double_ ? static_cast<const void*>(&scalar_.value) : &in_fp32_;
  }

 private:
  const Scalar& scalar_;
  bool in_double_;
  float in_fp32_;
};

cublasOperation_t operation(const Operand& operand) { return operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

// ---- products with an addend, by cublasLt ----

template <auto destroy>
struct Destroyed {
  template <class T>
  void operator()(T* described) const {
    destroy(described);
  }
};
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroyed<cublasLtMatrixLayoutDestroy>>;
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroyed<cublasLtMatmulDescDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroyed<cublasLtMatmulPreferenceDestroy>>;

Layout layout_of(const Operand& operand, int64_t rows, int64_t cols, int64_t count) {
  cublasLtMatrixLayout_t made = nullptr;
  if (operand.transposed) std::swap(rows, cols);
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(&made, data_type(operand.storage), static_cast<uint64_t>(rows),
                                                  static_cast<uint64_t>(cols), operand.leading));
  Layout layout(made);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutSetAttribute(made, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, operand.stride);
  return layout;
}

Description description_of(const Product& product) {
  const bool in_double = product.arithmetic == Arithmetic::fp64;
  cublasLtMatmulDesc_t made = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&made, compute_type(product), in_double ? CUDA_R_64F : CUDA_R_32F));
  Description description(made);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, cublasOperation_t value) {
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, operation(product.A));
  set(CUBLASLT_MATMUL_DESC_TRANSB, operation(product.B));
  return description;
}

// A product as cublasLt is told of it.
struct Described {
  Description description;
  Layout A, B, addend, C;

  explicit Described(const Product& product)
      : description(description_of(product)),
        A(layout_of(product.A, product.m, product.k, product.count)),
        B(layout_of(product.B, product.k, product.n, product.count)),
        addend(layout_of(product.addend, product.m, product.n, product.count)),
        C(layout_of(product.C, product.m, product.n, product.count)) {}

  // The first that cublasLt names: that of matrices at multiples of 16 bytes, with what room there is.
  cublasLtMatmulAlgo_t algorithm(cublasLtHandle_t handle) const {
    cublasLtMatmulPreference_t made = nullptr;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kProductRoom));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, uint32_t{16});
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, description.get(), A.get(), B.get(), addend.get(),
                                                        C.get(), preference.get(), 1, &found, &count));
    TORCH_CHECK(count > 0, "torchdion: cublasLt knows no algorithm for a product");
    return found.algo;
  }
};

// The algorithms of products that there have been are kept. Shapes, strides, types and the device decide.
cublasLtMatmulAlgo_t algorithm_of(const Product& product, const Described& described, int device,
                                  cublasLtHandle_t handle) {
  static auto& known = *new std::map<std::vector<int64_t>, cublasLtMatmulAlgo_t>;
  static std::mutex mutex;
  std::vector<int64_t> key{device,    product.m,     product.n,
                           product.k, product.count, static_cast<int64_t>(product.arithmetic)};
  for (const Operand* operand : {&product.A, &product.B, &product.addend, &product.C}) {
    key.insert(key.end(), {operand->stride, operand->leading, operand->transposed ? 1 : 0,
                           static_cast<int64_t>(operand->storage)});
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(std::move(key), described.algorithm(handle)).first->second;
}

void multiply_and_add(const Product& product, int device) {
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Described described(product);
  const cublasLtMatmulAlgo_t algorithm = algorithm_of(product, described, device, handle);
  const bool in_double = product.arithmetic == Arithmetic::fp64;
  const ScalarMemory alpha(product.alpha, in_double), beta(product.beta, in_double);
  TORCH_CUDABLAS_CHECK(cublasLtMatmul(
      handle, described.description.get(), alpha.get(), product.A.data, described.A.get(), product.B.data,
      described.B.get(), beta.get(), product.addend.data, described.addend.get(), product.C.data, described.C.get(),
      &algorithm, product.room, kProductRoom, static_cast<cudaStream_t>(current_stream(device))));
}

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
  if (product.symmetric) return multiply_symmetric(product, device);
  if (product.addend.data) return multiply_and_add(product, device);
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
