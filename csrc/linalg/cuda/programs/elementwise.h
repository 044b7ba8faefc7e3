// Entry by entry over lists of matrices, or of whole tensors taken as matrices of one row.
#pragma once

#include <cmath>
#include <type_traits>

#include "linalg/cuda/programs/pairs.h"
#include "linalg/least_momentum.h"
#include "linalg/rules/decay.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

TORCHDION_HOST_DEVICE bool is_finite(float value) { return value - value == 0; }
TORCHDION_HOST_DEVICE bool is_finite(double value) { return value - value == 0; }

// The entry of a gradient as it counts; `found` grows where it counts as zero instead.
template <class T>
TORCHDION_HOST_DEVICE T counted(const GradientRule& rule, T gradient, int64_t& found) {
  if (!rule.zeroed || is_finite(gradient)) return gradient;
  ++found;
  return 0;
}

// linalg/least_momentum.h, by how momenta are stored.
template <class S>
inline constexpr double kLeastMomentum = std::is_same_v<S, double> ? kLeastMomentumFP64
                                         : std::is_same_v<S, Half> ? kLeastMomentumFP16
                                                                   : kLeastMomentumFP32;
TORCHDION_HOST_DEVICE double least_momentum(Storage storage) {
  if (storage == Storage::float64) return kLeastMomentumFP64;
  return storage == Storage::float16 ? kLeastMomentumFP16 : kLeastMomentumFP32;
}

// What a rule does to the entries of one momentum.
template <class SM, class SG>
struct MomentumRule {
  using T = Wider<SM, SG>;
  T keep, factor, least;
  bool stays;
  const GradientRule& rule;

  TORCHDION_DEVICE MomentumRule(const GradientRule& given, int64_t matrix)
      : keep(static_cast<T>(given.keep)),
        factor(static_cast<T>(given.total_factor())),
        least(static_cast<T>(kLeastMomentum<SM>)),
        stays(given.frozen.has(matrix)),
        rule(given) {}

  // Returns the gradient as it counts; `found` grows where it counts as zero.
  TORCHDION_DEVICE T add(SM& momentum, SG entry, int64_t& found) const {
    const T gradient = factor * counted(rule, static_cast<T>(load(entry)), found);
    if (!stays) store(momentum, accumulated(least, keep, static_cast<T>(load(momentum)), gradient));
    return gradient;
  }
  template <class Block>
  TORCHDION_DEVICE void count(Block& block, int64_t found) const {
    if (rule.zeroed && !rule.frozen.all()) block.add(rule.zeroed, found);
  }
};

// M ← M + G as the rule has it.
template <class SM, class SG>
struct Accumulate {
  static constexpr int threads = 256;
  void* const* M;
  void* const* G;
  Pairs pairs;
  GradientRule rule;

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{2 * sizeof(SM) + sizeof(SG)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    if (rule.frozen.all()) return;
    const int64_t matrix = pairs.matrix(block.index());
    SM* m = static_cast<SM*>(M[matrix]);
    const SG* g = static_cast<const SG*>(G[matrix]);
    const MomentumRule<SM, SG> momentum(rule, matrix);
    typename Block::template Registers<int64_t> found;
    block.each([&](int t) { found[t] = 0; });
    pairs.replace(block, m, g, NoOutput(),
                  [&](int t, SM& entry, SG gradient, NoOutput::Entry&) { momentum.add(entry, gradient, found[t]); });
    block.each([&](int t) { momentum.count(block, found[t]); });
  }
};

// X ← factors[1] X + factors[0] s U as the rule has it.
template <class SX, class SU>
struct Axpby {
  static constexpr int threads = 256;
  void* const* X;
  void* const* U;
  Pairs pairs;
  const void* factors;  // in the wider type
  DirectionRule rule;
  const void* scales;  // s of each matrix, in the wider type; or null: 1

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{2 * sizeof(SX) + sizeof(SU)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SX, SU>;
    const int64_t matrix = pairs.matrix(block.index());
    if (rule.frozen.has(matrix)) return;
    SX* x = static_cast<SX*>(X[matrix]);
    const SU* u = static_cast<const SU*>(U[matrix]);
    const T update = static_cast<const T*>(factors)[0], keep = static_cast<const T*>(factors)[1];
    const T scale = scales ? static_cast<const T*>(scales)[matrix] : T(1);
    pairs.replace(block, x, u, NoOutput(), [&](int, SX& weight, SU direction, NoOutput::Entry&) {
      store(weight, moved(static_cast<T>(load(weight)), scale * static_cast<T>(load(direction)), update, keep, rule));
    });
  }
};

// linalg::SignFloor of all matrices, one after another.
struct FloorOfSigns {
  double of_entries, of_factors;
  const double *left, *right;  // or null

  template <class T>
  TORCHDION_DEVICE T left_of(int64_t row) const {
    return left ? static_cast<T>(of_factors * sqrt(left[row])) : T(0);
  }
  template <class T>
  TORCHDION_DEVICE T right_of(int64_t col) const {
    return right ? static_cast<T>(sqrt(right[col])) : T(0);
  }
};

// U ← the signs of L − U, 0 where the floor is higher; L ← L − feedback U.
template <class SL, class SU>
struct TakeSigns {
  static constexpr int threads = 256;
  void* const* L;
  void* const* U;
  Pairs pairs;
  double feedback;
  FloorOfSigns floor;

  Work work(int64_t blocks) const {
    const int64_t of_L = int64_t{sizeof(SL)} * (feedback != 0 ? 2 : 1);
    return {pairs.entries(blocks) * (of_L + int64_t{2 * sizeof(SU)})};
  }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = SU;
    const int64_t matrix = pairs.matrix(block.index());
    SL* l = static_cast<SL*>(L[matrix]);
    SU* u = static_cast<SU*>(U[matrix]);
    const T share = static_cast<T>(feedback), of_entries = static_cast<T>(floor.of_entries);
    pairs.each(
        block,
        [&](int64_t i, int64_t k) {
          return Both{l[i], u[k], k};
        },
        [&](int, int64_t i, const Both& both) {
          const T part = both.u, whole = static_cast<T>(load(both.l));
          const T size = (whole < 0 ? -whole : whole) + (part < 0 ? -part : part);
          const int64_t row = both.place / pairs.b.row, col = both.place - row * pairs.b.row;
          const T left = floor.template left_of<T>(matrix * pairs.rows + row),
                  right = floor.template right_of<T>(matrix * pairs.cols + col);
          u[both.place] = sign_above(whole - part, of_entries * size + left * right);
          if (feedback != 0) store(l[i], whole - share * part);
        });
  }

 private:
  struct Both {
    SL l;
    SU u;
    int64_t place;  // of u
  };
};

// A ← α B, but for frozen ones.
template <class SA, class SB>
struct Copy {
  static constexpr int threads = 256;
  void* const* A;
  void* const* B;
  Pairs pairs;
  double alpha;
  Frozen frozen;

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{sizeof(SA) + sizeof(SB)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SA, SB>;
    const int64_t matrix = pairs.matrix(block.index());
    if (frozen.has(matrix)) return;
    SA* a = static_cast<SA*>(A[matrix]);
    const SB* b = static_cast<const SB*>(B[matrix]);
    const T factor = static_cast<T>(alpha);
    pairs.each(
        block, [&](int64_t, int64_t k) { return b[k]; },
        [&](int, int64_t i, SB entry) { store(a[i], factor * static_cast<T>(load(entry))); });
  }
};

// A ← 0 of those that are frozen.
template <class SA>
struct Clear {
  static constexpr int threads = 256;
  void* const* A;
  Pairs pairs;
  Frozen frozen;

  Work work(int64_t) const { return {}; }  // of a step that is taken

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = pairs.matrix(block.index());
    if (!frozen.has(matrix)) return;
    SA* a = static_cast<SA*>(A[matrix]);
    pairs.each(
        block, [&](int64_t, int64_t) { return SA(); }, [&](int, int64_t i, SA zero) { a[i] = zero; });
  }
};

// What a product of cuBLAS has rounded to infinity becomes the largest number of FP16, as store() makes it. It hides no
// infinite gradient: that makes P NaN, and with it all of M and X.
struct Bound {
  static constexpr int threads = 256;
  void* const* C;
  Pairs pairs;

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{sizeof(Half)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    Half* c = static_cast<Half*>(C[pairs.matrix(block.index())]);
    pairs.each(
        block, [&](int64_t, int64_t k) { return c[k]; },
        [&](int, int64_t i, Half entry) {
          if (is_infinite(entry)) make_largest(c[i]);
        });
  }
};

// *found += the entries of G that are NaN or infinite.
template <class SG>
struct CountNonfinite {
  static constexpr int threads = 256;
  void* const* G;
  Pairs pairs;
  int64_t* found;

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{sizeof(SG)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const SG* g = static_cast<const SG*>(G[pairs.matrix(block.index())]);
    typename Block::template Registers<int64_t> seen;
    block.each([&](int t) { seen[t] = 0; });
    pairs.each(
        block, [&](int64_t, int64_t k) { return g[k]; },
        [&](int t, int64_t, SG entry) { seen[t] += !is_finite(load(entry)); });
    block.each([&](int t) { block.add(found, seen[t]); });
  }
};

// Each of so many entries rounded to what a tensor core reads.
template <int Kept>
struct RoundOperand {
  static constexpr int threads = 256, kChunk = threads * kElementsPerThread;
  float* entries;
  int64_t numel;

  int64_t blocks() const { return divide_up(numel, kChunk); }
  Work work(int64_t) const { return {numel * 2 * int64_t{sizeof(float)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t begin = block.index() * kChunk;
    block.each([&](int t) {
      for (int i = 0; i < kElementsPerThread; ++i) {
        const int64_t element = begin + t + i * threads;
        if (element < numel) entries[element] = round_mantissa<Kept>(entries[element]);
      }
    });
  }
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
