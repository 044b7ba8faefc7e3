#include "linalg/cpu/bfloat16_products.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "linalg/cpu/bfloat16_panels.h"
#include "linalg/cpu/product_tile.h"

namespace torchdion::linalg::cpu {

namespace {

static_assert(kTile == kPanelWidth);

// Entries of B that are packed at once: 8 MiB, and at least so many columns that packing A again for the next ones
// costs little beside the products.
constexpr int64_t kPackedEntries = int64_t{1} << 22, kLeastColumns = 512;

// Floating-point operations worth the start of a thread, and so many that threads pack B together rather than each
// for itself.
constexpr int64_t kFlopsOfTiles = 2'000'000, kFlopsOfSharedB = 100'000'000;

// Memory for packed operands, kept by each thread from one product to the next: the system takes longer to find new
// pages than a small product takes.
class Packed {
 public:
  c10::BFloat16* of_size(int64_t entries) {
    if (entries > capacity) {
      memory.reset();
      memory.reset(static_cast<c10::BFloat16*>(c10::alloc_cpu(entries * sizeof(c10::BFloat16))));
      capacity = entries;
    }
    return memory.get();
  }

 private:
  struct Free {
    void operator()(c10::BFloat16* data) const { c10::free_cpu(data); }
  };
  std::unique_ptr<c10::BFloat16, Free> memory;
  int64_t capacity = 0;
};

struct Workspace {
  Packed A, B;
  std::vector<char> has_panel;  // of B
  ProductTile tile, turned;
};

Workspace& workspace() {
  static thread_local const std::unique_ptr<Workspace> own = std::make_unique<Workspace>();
  return *own;
}

int64_t tiles_along(int64_t length) { return (length + kTile - 1) / kTile; }

class Products {
 public:
  Products(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha, double beta,
           bool symmetric)
      : C(C),
        D(D),
        A(A),
        B_by_columns(B.t()),
        alpha(static_cast<float>(alpha)),
        beta(static_cast<float>(beta)),
        symmetric(symmetric),
        panel_entries(kTile * padded_depth(A.cols)) {}

  void run() {
    const int64_t all = tiles_along(C.cols), least = kLeastColumns / kTile;
    const int64_t at_once = std::max(least, kPackedEntries / std::max<int64_t>(1, panel_entries));
    for (first_col = 0; first_col < all; first_col = end_col) {
      end_col = std::min(all, first_col + at_once);
      tiles_of_matrix = 0;
      for (int64_t row = first_row(); row < tiles_along(C.rows); ++row) tiles_of_matrix += end_of(row) - first_col;
      if (shares_B()) {
        for (int64_t index = 0; index < C.count(); ++index) share_out(index);
      } else {
        at::parallel_for(0, C.count() * tiles_of_matrix, grain(),
                         [&](int64_t begin, int64_t end) { tiles(begin, end, nullptr); });
      }
    }
  }

 private:
  int64_t first_row() const { return symmetric ? first_col : 0; }

  // The tiles of a row of tiles are those from `first_col` to here.
  int64_t end_of(int64_t row) const { return symmetric ? std::min(end_col, row + 1) : end_col; }

  int64_t grain() const { return kFlopsOfTiles / (2 * kTile * kTile * std::max<int64_t>(1, A.cols)) + 1; }

  // Each thread packs what it needs of B as it goes, unless few matrices are left for many threads.
  bool shares_B() const {
    return !at::in_parallel_region() && at::get_num_threads() > 1 && C.count() < 2 * at::get_num_threads() &&
           2 * C.rows * C.cols * A.cols >= kFlopsOfSharedB;
  }

  void share_out(int64_t index) const {
    c10::BFloat16* packed = workspace().B.of_size((end_col - first_col) * panel_entries);
    const Operand b = operand_of(B_by_columns, index);
    at::parallel_for(first_col, end_col, 1, [&](int64_t begin, int64_t end) {
      for (int64_t col = begin; col < end; ++col) pack_panel(b, col * kTile, PanelOrder::pairs, panel_of(packed, col));
    });
    at::parallel_for(0, tiles_of_matrix, grain(), [&](int64_t begin, int64_t end) {
      tiles(index * tiles_of_matrix + begin, index * tiles_of_matrix + end, packed);
    });
  }

  c10::BFloat16* panel_of(c10::BFloat16* packed, int64_t col) const {
    return packed + (col - first_col) * panel_entries;
  }

  // Tiles `begin` to `end` of all matrices, row by row. `shared`: B as it has been packed, or null.
  void tiles(int64_t begin, int64_t end, c10::BFloat16* shared) const {
    while (begin < end) {
      const int64_t index = begin / tiles_of_matrix, first = index * tiles_of_matrix;
      const int64_t last = std::min(end, first + tiles_of_matrix);
      tiles_of_one(index, begin - first, last - first, shared);
      begin = last;
    }
    at::native::cpublas::brgemm_release();
  }

  void tiles_of_one(int64_t index, int64_t begin, int64_t end, c10::BFloat16* shared) const {
    Workspace& own = workspace();
    c10::BFloat16* const a = own.A.of_size(panel_entries);
    c10::BFloat16* const b = shared ? shared : own.B.of_size((end_col - first_col) * panel_entries);
    own.has_panel.assign(end_col - first_col, shared != nullptr);
    int64_t row = first_row(), before = 0;  // tiles in the rows above
    for (; before + end_of(row) - first_col <= begin; ++row) before += end_of(row) - first_col;
    for (; before < end; ++row) {
      pack_panel(operand_of(A, index), row * kTile, PanelOrder::rows, a);
      const int64_t from = std::max(begin, before) - before + first_col,
                    to = std::min(end_of(row), end - before + first_col);
      for (int64_t col = from; col < to; ++col) {
        char& is_packed = own.has_panel[col - first_col];
        if (!is_packed) pack_panel(operand_of(B_by_columns, index), col * kTile, PanelOrder::pairs, panel_of(b, col));
        is_packed = 1;
        tile(own, index, row, col, a, panel_of(b, col));
      }
      before += end_of(row) - first_col;
    }
  }

  void tile(Workspace& own, int64_t index, int64_t row, int64_t col, const c10::BFloat16* a,
            const c10::BFloat16* b) const {
    const TilePlace place{index, row * kTile, col * kTile, std::min(kTile, C.rows - row * kTile),
                          std::min(kTile, C.cols - col * kTile)};
    const int64_t height = padded_width(place.rows), width = padded_width(place.cols), half = kTile / 2;
    if (A.cols == 0) std::fill_n(own.tile.sums, kTile * kTile, 0.0F);
    for (int64_t inner = 0; inner < A.cols; inner += kPanelDepth) {
      const int64_t depth = padded_depth(std::min(kPanelDepth, A.cols - inner));
      const c10::BFloat16 *left = a + inner * height, *right = b + inner * width;
      const auto rows_and_cols = [&](int64_t first, int64_t rows, int64_t cols) {
        at::native::cpublas::brgemm(rows, cols, depth, depth, width, kTile, inner > 0, left + first * depth, right,
                                    own.tile.sums + first * kTile);
      };
      if (symmetric && row == col && height == kTile) {  // a quarter is above the diagonal
        rows_and_cols(0, half, half);
        rows_and_cols(half, half, kTile);
      } else {
        rows_and_cols(0, height, width);
      }
    }
    combine(own.tile, D, place, alpha, beta);
    if (symmetric && row == col) mirror_below(own.tile);
    store(own.tile, C, place);
    if (symmetric && row != col) store_transposed(own.tile, own.turned, C, place);
  }

  const Matrices &C, &D, &A;
  const Matrices B_by_columns;
  float alpha, beta;
  bool symmetric;
  int64_t panel_entries;
  int64_t first_col = 0, end_col = 0, tiles_of_matrix = 0;  // columns of tiles that are computed at a time
};

// Whether torch multiplies a tile of pairs as it should: which of its builds and processors do is not to be had
// otherwise.
bool multiplies_a_tile() {
  constexpr int64_t kSize = 32;
  std::array<c10::BFloat16, kSize * kSize> a, b;
  std::array<float, kSize * kSize> c{};
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t j = 0; j < kSize; ++j) {
      a[i * kSize + j] = static_cast<float>((i + 2 * j) % 5 - 2);
      b[i / 2 * 2 * kSize + 2 * j + i % 2] = static_cast<float>((3 * i + j) % 7 - 3);
    }
  }
  try {
    at::native::cpublas::brgemm(kSize, kSize, kSize, kSize, kSize, kSize, false, a.data(), b.data(), c.data());
    at::native::cpublas::brgemm_release();
  } catch (const std::exception&) {
    return false;
  }
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t j = 0; j < kSize; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < kSize; ++k) sum += ((i + 2 * k) % 5 - 2) * ((3 * k + j) % 7 - 3);
      if (c[i * kSize + j] != static_cast<float>(sum)) return false;
    }
  }
  return true;
}

bool has_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

std::atomic<bool> is_allowed{true};

}  // namespace

bool has_bfloat16_products() {
  // torch's kernels are oneDNN's, which a program may switch off at any time.
  if (!is_allowed || !at::globalContext().userEnabledMkldnn()) return false;
  static const bool works = has_instructions() && multiplies_a_tile();
  return works;
}

bool exchange_bfloat16_products(bool allowed) { return is_allowed.exchange(allowed); }

void multiply_bfloat16(const Matrices& C, const Matrices& D, const Matrices& A, const Matrices& B, double alpha,
                       double beta, bool symmetric) {
  if (C.row_major()) {
    Products(C, D, A, B, alpha, beta, symmetric).run();
  } else {
    const Matrices Ct = C.t(), Dt = D.t(), Bt = B.t(), At = A.t();
    Products(Ct, Dt, Bt, At, alpha, beta, symmetric).run();
  }
}

}  // namespace torchdion::linalg::cpu
