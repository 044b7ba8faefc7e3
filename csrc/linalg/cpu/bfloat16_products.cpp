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
constexpr int64_t kFlopsOfBlocks = 2'000'000, kFlopsOfSharedB = 100'000'000;

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

// A panel of A as products read it: packed, or where it lies.
struct RowsOfA {
  const c10::BFloat16* data;
  bool packed;
  int64_t stride;  // from row to row, where it is not
};

// What needs no packing is left where it lies: rows in BF16 that need no padding.
RowsOfA rows_of(const Operand& A, int64_t first, c10::BFloat16* panel) {
  const int64_t rows = std::min(kPanelWidth, A.outer - first);
  const bool fits =
      A.is_bfloat16 && A.inner_stride == 1 && padded_width(rows) == rows && padded_depth(A.inner) == A.inner;
  if (fits) return {static_cast<const c10::BFloat16*>(A.data) + first * A.outer_stride, false, A.outer_stride};
  pack_panel(A, first, PanelOrder::rows, panel);
  return {panel, true, 0};
}

// Rows and columns of tiles in a block.
constexpr int64_t kLargestBlock = 4;

// Blocks for each thread that even out what they have to do.
constexpr int64_t kBlocksOfThread = 4;

struct Workspace {
  Packed A, B;
  RowsOfA a[kLargestBlock];
  c10::BFloat16* b = nullptr;   // panels of B
  std::vector<char> has_panel;  // which of these are packed
  ProductTile tiles[kLargestBlock * kLargestBlock], turned;
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
      side = side_of_blocks();
      blocks_of_matrix = blocks_with(side);
      if (shares_B()) {
        for (int64_t index = 0; index < C.count(); ++index) share_out(index);
      } else {
        at::parallel_for(0, C.count() * blocks_of_matrix, grain(),
                         [&](int64_t begin, int64_t end) { blocks(begin, end, nullptr); });
      }
    }
  }

 private:
  // Tiles of C that are computed together: what they read of A and B stays in the cache meanwhile.
  struct Block {
    int64_t first_row, end_row, first_col, end_col;
  };

  int64_t first_row() const { return symmetric ? first_col : 0; }

  // The tiles of a row of tiles are those from `first_col` to here.
  int64_t end_of(int64_t row) const { return symmetric ? std::min(end_col, row + 1) : end_col; }

  // Of the row of blocks that begins with this row of tiles, with so many rows and columns of tiles in a block.
  int64_t blocks_of_row(int64_t row, int64_t size) const {
    const int64_t last = std::min(row + size, tiles_along(C.rows)) - 1;
    return (end_of(last) - first_col + size - 1) / size;
  }

  int64_t blocks_with(int64_t size) const {
    int64_t blocks = 0;
    for (int64_t row = first_row(); row < tiles_along(C.rows); row += size) blocks += blocks_of_row(row, size);
    return blocks;
  }

  // Large blocks unless threads would have too few of them to share out evenly.
  int64_t side_of_blocks() const {
    int64_t size = kLargestBlock;
    const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
    while (size > 1 && threads > 1 && C.count() * blocks_with(size) < kBlocksOfThread * threads) size /= 2;
    return size;
  }

  int64_t grain() const {
    return kFlopsOfBlocks / (2 * side * side * kTile * kTile * std::max<int64_t>(1, A.cols)) + 1;
  }

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
    at::parallel_for(0, blocks_of_matrix, grain(), [&](int64_t begin, int64_t end) {
      blocks(index * blocks_of_matrix + begin, index * blocks_of_matrix + end, packed);
    });
  }

  c10::BFloat16* panel_of(c10::BFloat16* packed, int64_t col) const {
    return packed + (col - first_col) * panel_entries;
  }

  // Blocks `begin` to `end` of all matrices, row by row. `shared`: B as it has been packed, or null.
  void blocks(int64_t begin, int64_t end, c10::BFloat16* shared) const {
    while (begin < end) {
      const int64_t index = begin / blocks_of_matrix, first = index * blocks_of_matrix;
      const int64_t last = std::min(end, first + blocks_of_matrix);
      blocks_of_one(index, begin - first, last - first, shared);
      begin = last;
    }
    at::native::cpublas::brgemm_release();
  }

  void blocks_of_one(int64_t index, int64_t begin, int64_t end, c10::BFloat16* shared) const {
    Workspace& own = workspace();
    own.b = shared ? shared : own.B.of_size((end_col - first_col) * panel_entries);
    own.has_panel.assign(end_col - first_col, shared != nullptr);
    int64_t before = 0;  // blocks in the rows above
    for (int64_t row = first_row(); before < end; row += side) {
      const int64_t count = blocks_of_row(row, side);
      const int64_t from = std::max<int64_t>(0, begin - before), to = std::min(count, end - before);
      const int64_t end_row = std::min(row + side, tiles_along(C.rows));
      if (from < to) read_rows(own, index, row, end_row);
      for (int64_t i = from; i < to; ++i) {
        const int64_t col = first_col + i * side;
        block(own, index, {row, end_row, col, std::min(col + side, end_of(end_row - 1))});
      }
      before += count;
    }
  }

  void read_rows(Workspace& own, int64_t index, int64_t first, int64_t end) const {
    c10::BFloat16* const packed = own.A.of_size((end - first) * panel_entries);
    for (int64_t row = first; row < end; ++row) {
      own.a[row - first] = rows_of(operand_of(A, index), row * kTile, packed + (row - first) * panel_entries);
    }
  }

  // The outer loop is that over the inner dimension: a chunk of all panels stays in the cache.
  void block(Workspace& own, int64_t index, const Block& block) const {
    for (int64_t col = block.first_col; col < block.end_col; ++col) {
      char& is_packed = own.has_panel[col - first_col];
      if (!is_packed) pack_panel(operand_of(B_by_columns, index), col * kTile, PanelOrder::pairs, panel_of(own.b, col));
      is_packed = 1;
    }
    const auto for_each_tile = [&](const auto& body) {
      for (int64_t row = block.first_row; row < block.end_row; ++row) {
        for (int64_t col = block.first_col; col < std::min(block.end_col, end_of(row)); ++col) {
          body(own.tiles[(row - block.first_row) * kLargestBlock + col - block.first_col], row, col);
        }
      }
    };
    if (A.cols == 0) {
      for_each_tile([](ProductTile& tile, int64_t, int64_t) { std::fill_n(tile.sums, kTile * kTile, 0.0F); });
    }
    for (int64_t inner = 0; inner < A.cols; inner += kPanelDepth) {
      for_each_tile([&](ProductTile& tile, int64_t row, int64_t col) {
        multiply(tile, own.a[row - block.first_row], panel_of(own.b, col), row, col, inner);
      });
    }
    for_each_tile([&](ProductTile& tile, int64_t row, int64_t col) { finish(own, tile, index, row, col); });
  }

  int64_t rows_at(int64_t row) const { return std::min(kTile, C.rows - row * kTile); }
  int64_t cols_at(int64_t col) const { return std::min(kTile, C.cols - col * kTile); }

  // tile ← A B, or + A B, of the chunk that begins with this inner entry.
  void multiply(ProductTile& tile, const RowsOfA& a, const c10::BFloat16* b, int64_t row, int64_t col,
                int64_t inner) const {
    const int64_t height = padded_width(rows_at(row)), width = padded_width(cols_at(col)), half = kTile / 2;
    const int64_t depth = padded_depth(std::min(kPanelDepth, A.cols - inner));
    const int64_t stride = a.packed ? depth : a.stride;
    const c10::BFloat16 *left = a.data + (a.packed ? inner * height : inner), *right = b + inner * width;
    const auto rows_and_cols = [&](int64_t first, int64_t rows, int64_t cols) {
      at::native::cpublas::brgemm(rows, cols, depth, stride, width, kTile, inner > 0, left + first * stride, right,
                                  tile.sums + first * kTile);
    };
    if (symmetric && row == col && height == kTile) {  // a quarter is above the diagonal
      rows_and_cols(0, half, half);
      rows_and_cols(half, half, kTile);
    } else {
      rows_and_cols(0, height, width);
    }
  }

  // C ← α tile + β D
  void finish(Workspace& own, ProductTile& tile, int64_t index, int64_t row, int64_t col) const {
    const TilePlace place{index, row * kTile, col * kTile, rows_at(row), cols_at(col)};
    combine(tile, D, place, alpha, beta);
    if (symmetric && row == col) mirror_below(tile, place.rows);
    store(tile, C, place);
    if (symmetric && row != col) store_transposed(tile, own.turned, C, place);
  }

  const Matrices &C, &D, &A;
  const Matrices B_by_columns;
  float alpha, beta;
  bool symmetric;
  int64_t panel_entries;
  // Of the columns of tiles that are computed at a time: which these are, and the blocks that they are cut into.
  int64_t first_col = 0, end_col = 0, side = 1, blocks_of_matrix = 0;
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
