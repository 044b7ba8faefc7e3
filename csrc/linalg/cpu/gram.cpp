#include <ATen/ops/zeros.h>

#include "linalg/cpu/convert.h"
#include "linalg/cpu/operations.h"
#include "linalg/cpu/parallel_rows.h"
#include "linalg/cpu/round_operand.h"

namespace torchdion::linalg::cpu {

namespace {

// Rows of P converted to FP64 at a time: a GEMM deep enough for full speed whose operand stays in the cache.
constexpr int64_t kGramDepth = 192;
// Only the blocks on and below the diagonal are computed: narrow blocks waste less of the diagonal ones.
constexpr int64_t kGramWidth = 96;

template <class T>
void gram_of(const Matrices& P, int64_t index, double* H) {
  const int64_t r = P.cols;
  cpu::Scratch<double> scratch;
  for (int64_t row = 0; row < P.rows; row += kGramDepth) {
    const int64_t depth = std::min(kGramDepth, P.rows - row);
    const cpu::Block<const double> p = cpu::read_rows<double>(P, index, row, depth, scratch);
    for (int64_t i = 0; i < r; i += kGramWidth) {
      const int64_t height = std::min(kGramWidth, r - i);
      cpu::gemm(cpu::Block<double>{H + i * r, r, 1}, p.at(0, i).t(), p, height, i + height, depth, 1, row > 0);
    }
  }
}

}  // namespace

at::Tensor Operations::gram(const Matrices& P, Precision precision, bool) {
  const int64_t r = P.cols;

  at::Tensor H = at::zeros({P.count(), r, r}, at::kDouble);
  double* out = H.mutable_data_ptr<double>();
  const bool rounds = P.dtype == at::kFloat && precision == Precision::medium;
  cpu::parallel_matrices(P.count(), [&](int64_t index) {
    if (rounds) cpu::round_to_bfloat16_(P.matrix<float>(index), P.rows * r);
    gram_of<double>(P, index, out + index * r * r);
  });
  return H;
}

}  // namespace torchdion::linalg::cpu
