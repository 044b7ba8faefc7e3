// The CUDA operations on the host: products by loops, in the place of csrc/linalg/cuda/runtime.cpp. With
// TORCHDION_TEST_BACKEND=emulated, or emulated-backwards, a test program uses them for everything on the CPU; with
// emulated-recording for Meta tensors, whose entries nobody computes (made_up_memory.h).
//
// What is not said of a GPU's products is done in the worst way:
// - TORCHDION_TEST_TENSOR_CORES=truncating: operands lose the bits that tensor cores do not read, and every partial sum
//   those that FP32 does not hold, as Hopper's do; else (rounding) operands are rounded to nearest, as Ampere's kernels
//   do, and sums of FP32.
// - A call of another kind, or whose matrices begin elsewhere in 16 bytes, has other last bits, as it has other
// kernels.
// - With β in device memory C is read, also where β is 0. Memory that nobody has written holds NaN.
#include "linalg/cuda/runtime.h"

#include <ATen/Context.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/made_up_memory.h"
#include "linalg/cuda/lower_tiles.h"
#include "linalg/cuda/operations.h"
#include "linalg/cuda/tensor_cores.h"

namespace torchdion::linalg::emulated {

bool backwards = false, runs_programs = true;

namespace {

bool truncates = false;

// Toward zero, to what FP32 holds.
float truncated(double value) {
  const float nearest = static_cast<float>(value);
  return std::abs(static_cast<double>(nearest)) > std::abs(value) ? std::nextafterf(nearest, 0) : nearest;
}

template <int Kept>
float read_by_tensor_cores(float value) {
  return truncates ? truncate_mantissa<Kept>(value) : round_mantissa<Kept>(value);
}

bool on_tensor_cores(const Product& product) {
  return product.arithmetic == Arithmetic::tf32 || product.arithmetic == Arithmetic::bf16 ||
         product.A.storage == Storage::float16 || product.A.storage == Storage::bfloat16;
}

char* matrix_of(const Operand& operand, int64_t matrix) {
  if (operand.list) return static_cast<char*>(operand.list[matrix]);
  int64_t bytes = 0;
  dispatch(operand.storage, [&](auto storage) { bytes = sizeof storage; });
  return static_cast<char*>(operand.data) + matrix * operand.stride * bytes;
}

bool is_aligned(const Operand& operand, int64_t matrix) {
  return reinterpret_cast<std::uintptr_t>(matrix_of(operand, matrix)) % 16 == 0;
}

template <class T>
T entry(const Operand& operand, int64_t matrix, int64_t row, int64_t col, Arithmetic arithmetic) {
  if (operand.transposed) std::swap(row, col);
  const int64_t place = row + col * operand.leading;
  T value{};
  dispatch(operand.storage, [&](auto storage) {
    using S = decltype(storage);
    value = static_cast<T>(load(reinterpret_cast<const S*>(matrix_of(operand, matrix))[place]));
  });
  if (operand.storage != Storage::float32) return value;
  if (arithmetic == Arithmetic::tf32) return read_by_tensor_cores<10>(static_cast<float>(value));
  if (arithmetic == Arithmetic::bf16) return read_by_tensor_cores<7>(static_cast<float>(value));
  return value;
}

// op(operand) column by column.
template <class T>
std::vector<T> entries(const Operand& operand, int64_t matrix, int64_t rows, int64_t cols, Arithmetic arithmetic) {
  std::vector<T> all;
  for (int64_t col = 0; col < cols; ++col) {
    for (int64_t row = 0; row < rows; ++row) all.push_back(entry<T>(operand, matrix, row, col, arithmetic));
  }
  return all;
}

// cuBLAS rounds what is beyond FP16 to infinity.
template <class S, class T>
void store_as_cublas(S& target, T value) {
  if constexpr (std::is_same_v<S, Half>) {
    target = nearest_half(static_cast<float>(value));
  } else {
    store(target, value);
  }
}

template <class T>
double number(const Scalar& scalar) {
  return scalar.device ? static_cast<double>(*static_cast<const T*>(scalar.device)) : scalar.value;
}

// sum + Σ term(l) as tensor cores that truncate add so many products.
template <class Term>
float add_and_truncate(float sum, int64_t count, const Term& term) {
  constexpr int64_t kAtOnce = 8;  // products that are added before the sum is cut off
  for (int64_t first = 0; first < count; first += kAtOnce) {
    double partial = sum;
    for (int64_t l = first; l < std::min(count, first + kAtOnce); ++l) partial += term(l);
    sum = truncated(partial);
  }
  return sum;
}

// Σ a_l b_l, in an order of the kernel's own.
template <class T>
T dot(const T* a, const T* b, int64_t k, int kernel, bool in_tensor_cores) {
  const auto place = [&](int64_t l) { return kernel % 2 == 0 ? l : k - 1 - l; };
  if (!in_tensor_cores || !truncates) {
    T even = 0, odd = 0;
    for (int64_t l = 0; l < k; ++l) (kernel < 2 || l % 2 == 0 ? even : odd) += a[place(l)] * b[place(l)];
    return even + odd;
  }
  return static_cast<T>(add_and_truncate(
      0, k, [&](int64_t l) { return static_cast<double>(a[place(l)]) * static_cast<double>(b[place(l)]); }));
}

template <class T>
void products(const Product& product) {
  const auto [m, n, k] = std::tuple(product.m, product.n, product.k);
  const T alpha = static_cast<T>(number<T>(product.alpha)), beta = static_cast<T>(number<T>(product.beta));
  for (int64_t matrix = 0; matrix < product.count; ++matrix) {
    Operand a_transposed = product.A;
    a_transposed.transposed = !a_transposed.transposed;
    const std::vector<T> A = entries<T>(a_transposed, matrix, k, m, product.arithmetic);
    const std::vector<T> B = entries<T>(product.B, matrix, k, n, product.arithmetic);
    // cuBLAS sees where a stack begins, and not what a list holds.
    const bool begins_anywhere =
        !product.C.list && !(is_aligned(product.A, 0) && is_aligned(product.B, 0) && is_aligned(product.C, 0));
    const int kernel = (product.C.list || product.addend.data ? 1 : 0) + (begins_anywhere ? 2 : 0);
    dispatch(product.C.storage, [&](auto storage) {
      using S = decltype(storage);
      S* data = reinterpret_cast<S*>(matrix_of(product.C, matrix));
      const Operand& addend = product.addend.data ? product.addend : product.C;
      const S* addends = reinterpret_cast<const S*>(matrix_of(addend, matrix));
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          const T sum = dot(&A[i * k], &B[j * k], k, kernel, on_tensor_cores(product));
          const bool adds = beta != 0 || product.beta.device;
          const T before = adds ? static_cast<T>(load(addends[i + j * addend.leading])) : T(0);
          store_as_cublas(data[i + j * product.C.leading], alpha * sum + (adds ? beta * before : T(0)));
        }
      }
    });
  }
}

// An operand of a symmetric product as the kernel reads it, the inner dimension first.
std::vector<float> read_inner_first(const Operand& given, bool transposed, int64_t matrix, int64_t inner, int64_t p,
                                    const Arithmetic arithmetic) {
  Operand read = given, meant = given;
  read.transposed = transposed;
  std::vector<float> found = entries<float>(read, matrix, inner, p, arithmetic);
  if (transposed != meant.transposed) {
    TORCH_CHECK(inner == p && found == entries<float>(meant, matrix, inner, p, arithmetic), "no symmetric operand");
  }
  return found;
}

// As symmetric_product.h does it: the tiles in their order, those below the diagonal stored twice.
void symmetric_products(const Product& product) {
  const int64_t p = product.m, k = product.k;
  const bool inner_is_contiguous = product.A.transposed || !product.B.transposed;
  Operand A = product.A;
  A.transposed = !A.transposed;  // inner dimension first
  const auto alpha = static_cast<float>(product.alpha.value), beta = static_cast<float>(product.beta.value);
  const auto across = static_cast<int32_t>(tiles_across(p));
  for (int64_t matrix = 0; matrix < product.count; ++matrix) {
    const std::vector<float> a = read_inner_first(A, !inner_is_contiguous, matrix, k, p, product.arithmetic),
                             b = read_inner_first(product.B, !inner_is_contiguous, matrix, k, p, product.arithmetic);
    auto* C = reinterpret_cast<BFloat16*>(matrix_of(product.C, matrix));
    const auto* D = reinterpret_cast<const BFloat16*>(matrix_of(product.addend, matrix));
    for (int32_t before = 0; before < count_lower_tiles(p); ++before) {
      const LowerTile tile = lower_tile(before / (across + 1), before % (across + 1), across);
      const int64_t bottom = std::min(p, (tile.row + 1) * kLowerTile), right = std::min(p, (tile.col + 1) * kLowerTile);
      for (int64_t i = tile.row * kLowerTile; i < bottom; ++i) {
        for (int64_t j = tile.col * kLowerTile; j < right; ++j) {
          float value = alpha * dot(&a[i * k], &b[j * k], k, 2, true);
          if (product.addend.data) value += beta * load(D[i * product.addend.leading + j]);
          store(C[i * product.C.leading + j], value);
          if (tile.row != tile.col) store(C[j * product.C.leading + i], value);
        }
      }
    }
  }
}

void check_symmetric(const Product& product) {
  const auto fits = [&](const Operand& operand) {
    return operand.storage == Storage::bfloat16 && !operand.list && operand.leading % 8 == 0 &&
           operand.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0;
  };
  TORCH_CHECK(product.m == product.n && product.m % 8 == 0 && product.k % 8 == 0 && fits(product.A) &&
                  fits(product.B) && fits(product.C) && !product.C.transposed && !product.alpha.device &&
                  !product.beta.device,
              "no such symmetric product");
  TORCH_CHECK(!product.addend.data || (fits(product.addend) && !product.addend.transposed &&
                                       (product.A.transposed || !product.B.transposed)),
              "no such symmetric product with an addend");
}

const bool is_chosen = [] {
  const char* given = std::getenv("TORCHDION_TEST_BACKEND");
  const std::string name = given ? given : "cpu";
  if (name == "cpu") return false;
  if (name == "emulated-recording") {
    runs_programs = false;
    make_memory_up();
    exchange_backend(c10::kMeta, &backend_made_of<Operations>());
    return true;
  }
  TORCH_CHECK(name == "emulated" || name == "emulated-backwards", "no such backend: ", name);
  backwards = name == "emulated-backwards";
  const char* tensor_cores = std::getenv("TORCHDION_TEST_TENSOR_CORES");
  truncates = tensor_cores && std::string(tensor_cores) == "truncating";
  TORCH_CHECK(truncates || !tensor_cores || std::string(tensor_cores) == "rounding", "no such tensor cores");
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);  // so that at::empty() fills
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  exchange_backend(c10::kCPU, &backend_made_of<Operations>());
  return true;
}();

}  // namespace

float add_products(float sum, int count, const float* a, const float* b) {
  if (truncates) {
    return add_and_truncate(sum, count,
                            [&](int64_t l) { return static_cast<double>(a[l]) * static_cast<double>(b[l]); });
  }
  for (int l = 0; l < count; ++l) sum += a[l] * b[l];
  return sum;
}

Stream current_stream(int) { return nullptr; }

bool is_capturing(int) { return false; }

bool multiplies_symmetric(int) { return true; }

void multiply(const Product& product, int) {
  record_product(product);
  if (product.symmetric) {
    check_symmetric(product);
    if (runs_programs) symmetric_products(product);
    return;
  }
  // What cuBLAS refuses.
  TORCH_CHECK(product.A.storage == product.B.storage, "operands of two types");
  TORCH_CHECK(product.C.storage == product.A.storage || product.C.storage == Storage::float32, "no such product");
  TORCH_CHECK((product.A.storage == Storage::float64) == (product.arithmetic == Arithmetic::fp64), "no such product");
  TORCH_CHECK((product.alpha.device == nullptr) == (product.beta.device == nullptr), "scalars of two places");
  if (product.addend.data) {
    TORCH_CHECK(!product.C.list && product.C.storage == product.A.storage && product.room && !product.beta.device &&
                    product.addend.storage == product.C.storage && !product.addend.transposed,
                "no such addend");
  }
  for (const Operand* operand : {&product.A, &product.B, &product.C}) {
    for (int64_t i = 0; runs_programs && operand->list && i < product.count; ++i) {
      TORCH_CHECK(is_aligned(*operand, i), "misaligned pointers");
    }
  }
  const auto fits = [](const Operand& operand, int64_t rows, int64_t cols) {
    return operand.leading >= std::max<int64_t>(1, operand.transposed ? cols : rows);
  };
  TORCH_CHECK(fits(product.A, product.m, product.k) && fits(product.B, product.k, product.n) &&
                  fits(product.C, product.m, product.n) && !product.C.transposed,
              "leading dimensions");
  if (!runs_programs) return;
  if (product.arithmetic == Arithmetic::fp64) {
    products<double>(product);
  } else {
    products<float>(product);
  }
}

}  // namespace torchdion::linalg::emulated
