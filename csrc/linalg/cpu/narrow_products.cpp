#include "linalg/cpu/blas.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace torchdion::linalg::cpu {

#if defined(__x86_64__)

namespace {

constexpr int64_t kInner = 256;  // terms of a sum before it is added to C: so many rows of A's columns stay cached
constexpr int64_t kAhead = 16;   // terms after this one, whose entries of A are asked for
constexpr int64_t kLine = 16;    // numbers in a line of the cache
constexpr int64_t kPanels = 8 * 1024;  // entries of B that are packed at a time: what the first-level cache holds

// Calls a function that is inlined, with registers of 8 or of 16 numbers.
template <class F>
__attribute__((target("avx2,fma"))) void with_lanes_of_8(const F& f) {
  f();
}
template <class F>
__attribute__((target("avx512f,fma"))) void with_lanes_of_16(const F& f) {
  f();
}

// `width` columns of B, row by row: zeros beyond the last.
void pack(float* panel, const Block<const float>& B, int64_t inner, int64_t cols, int64_t width) {
  if (cols < width) std::fill_n(panel, inner * width, 0.0F);
  for (int64_t l = 0; l < inner; ++l) {
    const float* row = B.data + l * B.row_stride;
    for (int64_t j = 0; j < std::min(cols, width); ++j) panel[l * width + j] = row[j * B.col_stride];
  }
}

// Asks for the entries of A that are read some terms later, or with the next rows: of columns each term is in a line of
// its own, and of rows too many lines are read in turn for the processor to see a pattern.
template <int Rows>
[[gnu::always_inline]] inline void fetch_ahead(Block<const float> A, int64_t term) {
  if (A.col_stride != 1) {
    __builtin_prefetch(A.data + (term + kAhead) * A.col_stride);
  } else if (term % kLine == 0) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) __builtin_prefetch(A.data + (i + Rows) * A.row_stride + term);
  }
}

// Some rows of C, and as many columns as so many vectors hold at most: C ← α A panel + β C.
template <int Rows, int Vectors, int Lanes>
[[gnu::always_inline]] inline void multiply(Block<float> C, Block<const float> A, const float* panel, int64_t inner,
                                            int64_t cols, float alpha, float beta) {
  typedef float Vector __attribute__((vector_size(Lanes * sizeof(float))));
  Vector sums[Rows][Vectors] = {};
  for (int64_t l = 0; l < inner; ++l) {
    fetch_ahead<Rows>(A, l);
    Vector row[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) std::memcpy(&row[v], panel + (l * Vectors + v) * Lanes, sizeof(Vector));
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const float entry = A.data[i * A.row_stride + l * A.col_stride];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sums[i][v] += entry * row[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      float* c = C.data + i * C.row_stride + v * Lanes;
      const int64_t count = std::clamp<int64_t>(cols - v * Lanes, 0, Lanes);
      Vector scaled = alpha * sums[i][v], kept = {};
      asm("" : "+x"(scaled));  // rounded before it is added, in every instance of this function
      if (count == Lanes) {
        if (beta != 0) std::memcpy(&kept, c, sizeof(Vector));
        kept = beta == 0 ? scaled : beta * kept + scaled;
        std::memcpy(c, &kept, sizeof(Vector));
      } else {
        if (beta != 0) std::memcpy(&kept, c, count * sizeof(float));
        kept = beta == 0 ? scaled : beta * kept + scaled;
        std::memcpy(c, &kept, count * sizeof(float));
      }
    }
  }
}

// Asks for what multiply() will read of C next: its rows are too short for the processor to see a pattern.
template <int Rows, int Vectors, int Lanes>
[[gnu::always_inline]] inline void fetch(Block<float> C) {
  for (int i = 0; i < Rows; ++i) {
    for (int v = 0; v < Vectors; ++v) __builtin_prefetch(C.data + i * C.row_stride + v * Lanes, 1);
  }
}

// Rows of C, Rows at a time, and fewer at the end.
template <int Rows, int Vectors, int Lanes>
[[gnu::always_inline]] inline void multiply_rows(Block<float> C, Block<const float> A, const float* panels,
                                                 int64_t rows, int64_t cols, int64_t inner, int64_t panel_size,
                                                 float alpha, float beta) {
  constexpr int64_t width = Vectors * Lanes;
  int64_t row = 0;
  for (; row + Rows <= rows; row += Rows) {
    const float* panel = panels;
    for (int64_t col = 0; col < cols; col += width, panel += panel_size) {
      if (beta != 0) fetch<Rows, Vectors, Lanes>(col + width < cols ? C.at(row, col + width) : C.at(row + Rows, 0));
      multiply<Rows, Vectors, Lanes>(C.at(row, col), A.at(row, 0), panel, inner, cols - col, alpha, beta);
    }
  }
  if constexpr (Rows > 1) {
    multiply_rows<Rows / 2, Vectors, Lanes>(C.at(row, 0), A.at(row, 0), panels, rows - row, cols, inner, panel_size,
                                            alpha, beta);
  }
}

template <int Rows, int Vectors, int Lanes>
void multiply_packed(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols,
                     int64_t inner, float alpha, float beta) {
  constexpr int64_t width = Vectors * Lanes;
  const int64_t at_once = std::max(width, kPanels / inner / width * width), panel_size = inner * width;
  std::vector<float> panels(inner * std::min(at_once, (cols + width - 1) / width * width));
  for (int64_t first = 0; first < cols; first += at_once) {
    const int64_t many = std::min(at_once, cols - first);
    for (int64_t col = 0; col < many; col += width) {
      pack(panels.data() + col * inner, B.at(0, first + col), inner, many - col, width);
    }
    for (int64_t begin = 0; begin < inner; begin += kInner) {
      const int64_t terms = std::min(kInner, inner - begin);
      const auto product = [&]() __attribute__((always_inline)) {
        multiply_rows<Rows, Vectors, Lanes>(C.at(0, first), A.at(0, begin), panels.data() + begin * width, rows, many,
                                            terms, panel_size, alpha, begin == 0 ? beta : 1);
      };
      if constexpr (Lanes == 16) {
        with_lanes_of_16(product);
      } else {
        with_lanes_of_8(product);
      }
    }
  }
}

// Numbers in a register of this processor; 0: it has none that the kernel knows.
int lanes() {
  static const int known = !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ? 0
                           : __builtin_cpu_supports("avx512f")                               ? 16
                                                                                             : 8;
  return known;
}

}  // namespace

bool is_narrow(int64_t cols, int64_t inner) {
  if (lanes() == 0 || inner == 0) return false;
  return inner <= 32 || cols <= (lanes() == 16 ? 16 : 32);  // where benchmarks/narrow_products.py has it ahead of BLAS
}

void narrow_gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
                 float alpha, float beta) {
  if (cols <= 8) return multiply_packed<8, 1, 8>(C, A, B, rows, cols, inner, alpha, beta);
  if (lanes() == 8) return multiply_packed<6, 2, 8>(C, A, B, rows, cols, inner, alpha, beta);
  if (cols <= 16) return multiply_packed<8, 1, 16>(C, A, B, rows, cols, inner, alpha, beta);
  multiply_packed<8, 2, 16>(C, A, B, rows, cols, inner, alpha, beta);
}

#else

bool is_narrow(int64_t /*cols*/, int64_t /*inner*/) { return false; }

void narrow_gemm(Block<float> C, Block<const float> A, Block<const float> B, int64_t rows, int64_t cols, int64_t inner,
                 float alpha, float beta) {
  gemm(C, A, B, rows, cols, inner, alpha, beta);
}

#endif

}  // namespace torchdion::linalg::cpu
