#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"

namespace torchdion::linalg::cpu {

namespace {

// Rows scaled into scratch at a time, and columns of the triangle multiplied at a time: below the diagonal block of a
// column block there is nothing, so it costs half of a full product.
constexpr int64_t kTriangleRows = 192, kTriangleWidth = 96;

template <class T>
void multiply_rows(T* p, int64_t rows, int64_t r, const double* scale, const T* inverse, cpu::Scratch<T>& scratch) {
  scratch.resize(kTriangleRows * r);
  for (int64_t row = 0; row < rows; row += kTriangleRows) {
    const int64_t height = std::min(kTriangleRows, rows - row);
    T* block = p + row * r;
    for (int64_t i = 0; i < height; ++i) {
      // In FP64: one over the norm of a denormal column is no FP32 number.
      for (int64_t j = 0; j < r; ++j) scratch[i * r + j] = static_cast<T>(block[i * r + j] * scale[j]);
    }
    for (int64_t j = 0; j < r; j += kTriangleWidth) {
      const int64_t width = std::min(kTriangleWidth, r - j);
      cpu::gemm(cpu::Block<T>{block + j, r, 1}, cpu::Block<const T>{scratch.data(), r, 1},
                cpu::Block<const T>{inverse + j, r, 1}, height, width, j + width, T(1), T(0));
    }
  }
}

}  // namespace

void Operations::multiply_triangular_(const Matrices&, const Matrices& P, const TriangularInverse& factor, Precision) {
  const int64_t r = P.cols;
  const double* scales = factor.scale.const_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(P.dtype, "torchdion::multiply_triangular_", [&] {
    const scalar_t* inverses = factor.inverse.const_data_ptr<scalar_t>();
    const int64_t grain = 200'000 / (r * r) + 1;
    cpu::parallel_rows(P.count(), P.rows, grain, [&](int64_t index, int64_t first, int64_t rows) {
      cpu::Scratch<scalar_t> scratch;
      multiply_rows(P.matrix<scalar_t>(index) + first * r, rows, r, scales + index * r, inverses + index * r * r,
                    scratch);
    });
  });
}

}  // namespace torchdion::linalg::cpu
