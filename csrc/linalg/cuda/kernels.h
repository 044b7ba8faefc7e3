// The kernels, by what they do to raw device memory. Lists of matrices are pointers in device memory, `count` of them.
// Each throws std::runtime_error with what CUDA says where a kernel cannot be started.
#pragma once

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/elementwise.h"
#include "linalg/cuda/programs/factor_gram.h"
#include "linalg/cuda/programs/lists.h"
#include "linalg/cuda/programs/sketch.h"
#include "linalg/cuda/runtime.h"
#include "linalg/cuda/storage.h"
#include "linalg/rules/row_sum.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

struct MatrixList {
  void* const* data;
  Storage storage;
  Strides strides;
  int64_t count, rows, cols;
};

namespace kernels {

// target ← 8-byte words from the host, whose memory may change at once.
void upload(uint64_t* target, const uint64_t* words, int64_t count, Stream stream);

// M ← M + G as the rule has it. M's rows are contiguous, G's need not be.
void accumulate(MatrixList M, MatrixList G, const GradientRule& rule, Stream stream);

// The same, and L ← what is ahead of the new M; L ← 0 where M stays. G and L may have any strides. squares ([count,
// parts_of(rows, cols)]) ← sums of the squares of parts of each L, where it is not null.
int64_t parts_of(int64_t rows, int64_t cols);
void look_ahead(MatrixList L, MatrixList M, MatrixList G, const GradientRule& rule, const LookAheadFactors& ahead,
                double* squares, Stream stream);

// factors ([count]) ← what divides each X ([count, numel]) by slack ‖X‖_F, from sums of squares ([count, parts]). They
// are FP64 where X is, else FP32. See programs/frobenius.h.
void frobenius_factors(Entries X, int64_t count, int64_t numel, const double* squares, int64_t parts, double slack,
                       void* factors, Stream stream);

// B ← f^power (A + a I) of p×p matrices ([count, p, p]). f: one for each, as above; or null, 1.
void add_identity(Entries B, Entries A, int64_t count, int64_t p, double a, const void* factors, int power,
                  Stream stream);

// X ← factors[1] X + factors[0] U as the rule has it. U_i is multiplied by scales[i] where these are there. The factors
// and scales are FP64 where X or U are, else FP32. X's rows are contiguous, U's need not be.
void axpby(MatrixList X, MatrixList U, const void* factors, const DirectionRule& rule, const void* scales,
           Stream stream);

// The same with row source[i] of U as row i, or zeros where that is −1, or, where it is null, its own, and each row
// multiplied by its `scale` where that is there, of the type of the factors. `across`: these rows are X's columns here,
// and U's.
void axpby_rows(MatrixList X, MatrixList U, const void* factors, const DirectionRule& rule, const int32_t* source,
                const void* scale, bool across, int64_t entries_of_U, Stream stream);

// sums ([count, rows]) ← of A's rows, or of the magnitudes. Either its rows or its columns are contiguous.
void row_sums(MatrixList A, RowSum kind, double* sums, Stream stream);

// M ← M + G as the rule has it, and sums ([count, rows]) ← Σ |b| of the new M's rows. Of both either the rows or the
// columns are contiguous, which accumulates_row_sums() says.
bool accumulates_row_sums(const MatrixList& M, const MatrixList& G);
void accumulate_row_sums(MatrixList M, MatrixList G, const GradientRule& rule, double* sums, Stream stream);

// Row j of A ← row numbers[j] of B, or zeros where that is −1, and these rows of B decay. A's data may be null: nothing
// is taken. Either B's rows or its columns are contiguous.
void take_rows(MatrixList A, MatrixList B, const int32_t* numbers, const RowDecay& decay, Stream stream);

// v ([rows, 1]) as the rule has it of an update's sums of squares ([count, of_update]), and the factors ([count, rows])
// and norms ([count, 2]) of linalg::RowFactors. `source` may be null.
void row_variances(MatrixList v, const double* squares, int64_t of_update, const int32_t* source,
                   const VarianceRule& rule, double* factors, double* norms, Stream stream);

// out ([count, rows]) ← linalg::keep_norms().
void keep_norms(Entries out, const double* factors, const double* norms, int64_t count, int64_t rows, Stream stream);

// rows ([count, k]) ← those of the largest norms ([count, size]); slots ([count, size]) ← the place of each, or −1.
void choose_rows(int32_t* rows, int32_t* slots, const double* norms, int64_t count, int64_t size, int64_t k,
                 Stream stream);

// A ← α B, but for frozen ones. A's rows are contiguous, B's need not be.
void copy(MatrixList A, MatrixList B, double alpha, const Frozen& frozen, Stream stream);

// A ← 0 of those that are frozen. A's rows are contiguous.
void clear(MatrixList A, const Frozen& frozen, Stream stream);

// Infinite entries of C, of FP16, become the largest numbers of FP16. C's rows are contiguous.
void bound(MatrixList C, Stream stream);

// *found += the entries that are NaN or infinite.
void count_nonfinite(MatrixList G, int64_t* found, Stream stream);

// squares ([count, cols]) ← the sums of squares of columns. R's rows are contiguous.
void column_square_sums(MatrixList R, double* squares, Stream stream);

// Q ← R with columns of unit length, by their sums of squares where these are given. Columns of length zero stay.
// Stacks that are written beside it, or null: the update Q − s R, in BF16 or as R is, and a copy of R in BF16. s: one
// for each matrix, FP64 where R is, else FP32; or null, 0.
struct ColumnOutputs {
  void* update;
  bool rounds_update;
  void* copy_of_R;
  const void* scales;
};
void column_normalize(MatrixList Q, MatrixList R, const double* squares, const ColumnOutputs& outputs, Stream stream);

// scales ([count]) ← 1 / σ of each matrix (linalg/residual.h), from the squared lengths of so many columns.
void residual_scales(Entries scales, const double* squares, int64_t count, int64_t cols, double least, Stream stream);

// U ← sign(L − U), 0 where the floor is higher, and L ← L − feedback U where that is not 0. U is FP64 or FP32; the rows
// of both are contiguous.
void take_signs(MatrixList U, MatrixList L, double feedback, FloorOfSigns floor, Stream stream);

// P's columns ([count, rows, cols], BF16 or FP32) times 2^-exponents ([count, cols]), and, in FP32, rounded to TF32.
// See programs/columns.h.
void scale_columns(Entries P, int64_t count, int64_t rows, int64_t cols, int* exponents, bool rounds, Stream stream);

// out ([count, rows, cols]) ← standard_deviation · blocks of the random matrices of seed and stream (linalg/sketch.h).
void sketch(Entries out, const SketchPlace& place, double standard_deviation, Stream stream);

// entries ← the same rounded to so many mantissa bits, 10 or 7.
void round_operand(float* entries, int64_t numel, int mantissa_bits, Stream stream);

// Of each row of entries ([count, size]) the places and values of the k largest magnitudes: chosen ([count, 2, k]).
void top_k(Entries chosen, Entries entries, int64_t count, int64_t size, int64_t k, Stream stream);

// Columns of the factors of Gram matrices. See programs/factor_gram.h.
template <class T, class F>
void factor_gram(const FactorGram<T, F>& program, int64_t count, Stream stream);

// C ← α op(A) op(B) + β C of FP32 matrices C and BF16 operands, where A is transposed and B is not. All matrices and
// their columns begin at multiples of 16 bytes. See programs/add_product.h. adds_products(): the device can do it.
bool adds_products(int device);
void add_product(const Product& product, Stream stream);

// A symmetric product (runtime.h) on a GPU with so many multiprocessors. See symmetric_product.h.
void multiply_symmetric_sm90(const Product& product, int processors, Stream stream);
void multiply_symmetric_sm100(const Product& product, int processors, Stream stream);

// linalg::ScaledMove of FP32 X, and others all BF16 or all FP32, which products read as TF32; with contiguous rows.
// Factors and their rows begin at multiples of 16 bytes. Where adds_products() is true.
struct ScaledMoveLists {
  MatrixList X, L, P, U;
  const float *factors, *scales;
  DirectionRule rule;
};
void move_by_scaled(const ScaledMoveLists& move, Stream stream);

// The same of linalg::SignMove, with FP32 M. L may be M.
struct SignMoveLists {
  MatrixList X, M, L, P1, R, P2, V;
  const float* factors;
  DirectionRule rule;
  double weight, feedback;
  FloorOfSigns floor;
};
void move_by_signs(const SignMoveLists& move, Stream stream);

// factors ([2]) ← update_factors().
void step_factors(Entries factors, double shape_factor, const DeviceRates& rates, const Frozen& frozen, Stream stream);

// A Lion or AdamW of programs/lists.h, with the blocks of all its tensors.
template <class Program>
void update_list(const Program& program, int64_t blocks, Stream stream);

}  // namespace kernels

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
