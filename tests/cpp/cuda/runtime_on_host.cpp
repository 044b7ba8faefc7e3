// The CUDA operations on the host: products by loops, in the place of csrc/linalg/cuda/runtime.cpp. With
// TORCHDION_TEST_BACKEND=emulated, or emulated-backwards, a test program uses them for everything on the CPU.
#include "linalg/cuda/runtime.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "linalg/cuda/operations.h"

namespace torchdion::linalg::emulated {

namespace {

template <class T>
T entry(const Operand& operand, int64_t matrix, int64_t row, int64_t col, Arithmetic arithmetic) {
  if (operand.transposed) std::swap(row, col);
  const int64_t place = row + col * operand.leading;
  T value{};
  dispatch(operand.storage, [&](auto storage) {
    using S = decltype(storage);
    const S* data = operand.list ? static_cast<const S*>(operand.list[matrix])
                                 : static_cast<const S*>(operand.data) + matrix * operand.stride;
    value = static_cast<T>(load(data[place]));
  });
  if (operand.storage != Storage::float32) return value;
  if (arithmetic == Arithmetic::tf32) return round_mantissa<10>(static_cast<float>(value));
  if (arithmetic == Arithmetic::bf16) return round_mantissa<7>(static_cast<float>(value));
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

template <class T>
void products(const Product& product) {
  const auto [m, n, k] = std::tuple(product.m, product.n, product.k);
  const T alpha = static_cast<T>(number<T>(product.alpha)), beta = static_cast<T>(number<T>(product.beta));
  for (int64_t matrix = 0; matrix < product.count; ++matrix) {
    Operand a_transposed = product.A;
    a_transposed.transposed = !a_transposed.transposed;
    const std::vector<T> A = entries<T>(a_transposed, matrix, k, m, product.arithmetic);
    const std::vector<T> B = entries<T>(product.B, matrix, k, n, product.arithmetic);
    dispatch(product.C.storage, [&](auto storage) {
      using S = decltype(storage);
      S* data = product.C.list ? static_cast<S*>(product.C.list[matrix])
                               : static_cast<S*>(product.C.data) + matrix * product.C.stride;
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          T sum = 0;
          for (int64_t l = 0; l < k; ++l) sum += A[i * k + l] * B[j * k + l];
          S& c = data[i + j * product.C.leading];
          store_as_cublas(c, alpha * sum + (beta == 0 ? T(0) : beta * static_cast<T>(load(c))));
        }
      }
    });
  }
}

const bool is_chosen = [] {
  const char* given = std::getenv("TORCHDION_TEST_BACKEND");
  const std::string name = given ? given : "cpu";
  if (name == "cpu") return false;
  TORCH_CHECK(name == "emulated" || name == "emulated-backwards", "no such backend: ", name);
  backwards = name == "emulated-backwards";
  exchange_backend(c10::kCPU, &kBackend<Operations>);
  return true;
}();

}  // namespace

Stream current_stream(int) { return nullptr; }

bool is_capturing(int) { return false; }

void multiply(const Product& product, int) {
  ++launches;
  // What cuBLAS refuses.
  TORCH_CHECK(product.A.storage == product.B.storage, "operands of two types");
  TORCH_CHECK(product.C.storage == product.A.storage || product.C.storage == Storage::float32, "no such product");
  TORCH_CHECK((product.A.storage == Storage::float64) == (product.arithmetic == Arithmetic::fp64), "no such product");
  TORCH_CHECK((product.alpha.device == nullptr) == (product.beta.device == nullptr), "scalars of two places");
  const bool on_tensor_cores = product.arithmetic == Arithmetic::tf32 || product.arithmetic == Arithmetic::bf16 ||
                               product.A.storage == Storage::float16 || product.A.storage == Storage::bfloat16;
  const auto is_aligned = [&](const Operand& operand) {
    for (int64_t i = 0; operand.list && i < product.count; ++i) {
      if (reinterpret_cast<std::uintptr_t>(operand.list[i]) % 16 != 0) return false;
    }
    return true;
  };
  TORCH_CHECK(!on_tensor_cores || (is_aligned(product.A) && is_aligned(product.B) && is_aligned(product.C)),
              "misaligned pointers");
  const auto fits = [](const Operand& operand, int64_t rows, int64_t cols) {
    return operand.leading >= std::max<int64_t>(1, operand.transposed ? cols : rows);
  };
  TORCH_CHECK(fits(product.A, product.m, product.k) && fits(product.B, product.k, product.n) &&
                  fits(product.C, product.m, product.n) && !product.C.transposed,
              "leading dimensions");
  if (product.arithmetic == Arithmetic::fp64) {
    products<double>(product);
  } else {
    products<float>(product);
  }
}

}  // namespace torchdion::linalg::emulated
