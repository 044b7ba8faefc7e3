// Entry by entry over lists of matrices, or of whole tensors taken as matrices of one row.
#pragma once

#include <cmath>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/storage.h"
#include "linalg/least_momentum.h"
#include "linalg/rules/decay.h"
#include "linalg/step_numbers.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kElementsPerThread = 8;  // loads in flight

TORCHDION_HOST_DEVICE bool is_finite(float value) { return value - value == 0; }
TORCHDION_HOST_DEVICE bool is_finite(double value) { return value - value == 0; }

// The entry of a gradient as it counts; `found` grows where it counts as zero instead.
template <class T>
TORCHDION_HOST_DEVICE T counted(const GradientRule& rule, T gradient, int64_t& found) {
  if (!rule.zeroed || is_finite(gradient)) return gradient;
  ++found;
  return 0;
}

// Where the entries of one of two equally shaped matrices lie.
struct Strides {
  int64_t row = 0, col = 1;
};

// Entries that lie one after another and are read or written at once.
template <class S, int Count>
struct alignas(Count * sizeof(S) < 16 ? Count * sizeof(S) : 16) Run {
  S entries[Count];
};

#ifdef __CUDACC__
// A type of so many bytes, which a thread writes at once.
template <size_t Bytes>
struct Word;
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};
#endif

// Writes a run in as few stores as there can be. An assignment would become one store for each entry where code beside
// it writes single ones.
template <class S, int Count>
TORCHDION_DEVICE void write_run(S* target, const Run<S, Count>& run) {
#ifdef __CUDACC__
  constexpr size_t kBytes = Count * sizeof(S) < 16 ? Count * sizeof(S) : 16, kWords = Count * sizeof(S) / kBytes;
  typename Word<kBytes>::type words[kWords];
  memcpy(words, &run, sizeof words);
  TORCHDION_UNROLL
  for (size_t i = 0; i < kWords; ++i) __stwb(reinterpret_cast<typename Word<kBytes>::type*>(target) + i, words[i]);
#else
  *reinterpret_cast<Run<S, Count>*>(target) = run;
#endif
}

template <class S>
TORCHDION_DEVICE bool is_aligned(const S* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// A list that is written beside two others, in any order of its memory; or none.
template <class S>
struct Output {
  using Entry = S;
  S* data;
  Strides strides;

  TORCHDION_DEVICE bool takes_runs(int64_t cols) const {
    return strides.row == cols && strides.col == 1 && is_aligned(data);
  }
  template <int Count>
  TORCHDION_DEVICE void put(int64_t first, const Run<S, Count>& run) const {
    write_run(data + first, run);
  }
  TORCHDION_DEVICE void put(int64_t row, int64_t col, S entry) const {
    data[row * strides.row + col * strides.col] = entry;
  }
};
struct NoOutput {
  struct Entry {};

  TORCHDION_DEVICE bool takes_runs(int64_t) const { return true; }
  template <int Count>
  TORCHDION_DEVICE void put(int64_t, const Run<Entry, Count>&) const {}
  TORCHDION_DEVICE void put(int64_t, int64_t, Entry) const {}
};

// Two lists of matrices, entry by entry, in the order of a's memory, whose rows are contiguous. A block has a chunk of
// one matrix.
struct Pairs {
  int64_t rows, cols;
  Strides a, b;

  static constexpr int kChunk = 256 * kElementsPerThread;

  TORCHDION_HOST_DEVICE int64_t chunks() const { return divide_up(rows * cols, kChunk); }
  TORCHDION_HOST_DEVICE int64_t matrix(int64_t block) const { return block / chunks(); }
  int64_t entries(int64_t blocks) const { return blocks / chunks() * rows * cols; }  // of one of the lists
  TORCHDION_HOST_DEVICE bool are_flat() const { return a.row == cols && b.row == cols && b.col == 1; }

  // Calls f(thread, entry of a, entry of b, entry of the output) for each entry of the block's chunk: f may write that
  // of a and of the output. Where all lie one after another, 16 bytes of the widest are read and written at once.
  template <class Block, class SA, class SB, class Out, class F>
  TORCHDION_DEVICE void replace(Block& block, SA* a_data, const SB* b_data, const Out& output, const F& f) const {
    using SL = typename Out::Entry;
    if (are_flat() && is_aligned(a_data) && is_aligned(b_data) && output.takes_runs(cols)) {
      constexpr size_t kOfPair = sizeof(SA) > sizeof(SB) ? sizeof(SA) : sizeof(SB);
      constexpr size_t kWidest = kOfPair > sizeof(SL) ? kOfPair : sizeof(SL);
      replace_runs<16 / kWidest>(block, a_data, b_data, output, f);
      return;
    }
    const int64_t numel = rows * cols, begin = block.index() % chunks() * kChunk;
    block.each([&](int t) {
      for (int i = 0; i < kElementsPerThread; ++i) {
        const int64_t element = begin + t + i * Block::threads;
        if (element >= numel) break;
        const int64_t row = element / cols, col = element - row * cols;
        SA entry = a_data[row * a.row + col];
        SL of_output{};
        f(t, entry, b_data[row * b.row + col * b.col], of_output);
        a_data[row * a.row + col] = entry;
        output.put(row, col, of_output);
      }
    });
  }

  // What a thread reads is on its way before it writes anything.
  template <int Count, class Block, class SA, class SB, class Out, class F>
  TORCHDION_DEVICE void replace_runs(Block& block, SA* a_data, const SB* b_data, const Out& output, const F& f) const {
    constexpr int kRuns = kElementsPerThread / Count;
    const int64_t numel = rows * cols, begin = block.index() % chunks() * kChunk;
    block.each([&](int t) {
      Run<SA, Count> of_a[kRuns];
      Run<SB, Count> of_b[kRuns];
      TORCHDION_UNROLL
      for (int i = 0; i < kRuns; ++i) {
        const int64_t first = begin + (i * Block::threads + t) * Count;
        if (first + Count > numel) continue;
        of_a[i] = *reinterpret_cast<const Run<SA, Count>*>(a_data + first);
        of_b[i] = *reinterpret_cast<const Run<SB, Count>*>(b_data + first);
      }
      TORCHDION_UNROLL
      for (int i = 0; i < kRuns; ++i) {
        const int64_t first = begin + (i * Block::threads + t) * Count;
        Run<typename Out::Entry, Count> of_output{};
        if (first + Count <= numel) {
          TORCHDION_UNROLL
          for (int e = 0; e < Count; ++e) f(t, of_a[i].entries[e], of_b[i].entries[e], of_output.entries[e]);
          write_run(a_data + first, of_a[i]);
          output.put(first, of_output);
          continue;
        }
        for (int64_t element = first; element < numel; ++element) {  // of a run that is not whole
          f(t, a_data[element], b_data[element], of_output.entries[0]);
          output.put(0, element, of_output.entries[0]);
        }
      }
    });
  }

  // Calls read(offset in a, offset in b) for each entry of the block's chunk, and then write(thread, offset in a, what
  // was read): no write keeps a thread's loads from being in flight together.
  template <class Block, class Read, class Write>
  TORCHDION_DEVICE void each(Block& block, const Read& read, const Write& write) const {
    const int64_t numel = rows * cols, begin = block.index() % chunks() * kChunk;
    const bool flat = are_flat();
    block.each([&](int t) {
      decltype(read(0, 0)) entries[kElementsPerThread];
      int64_t places[kElementsPerThread];
      for (int i = 0; i < kElementsPerThread; ++i) {
        const int64_t element = begin + t + i * Block::threads;
        if (element >= numel) break;
        const int64_t row = flat ? 0 : element / cols, col = element - row * cols;
        places[i] = row * a.row + col;
        entries[i] = read(places[i], row * b.row + col * b.col);
      }
      for (int i = 0; i < kElementsPerThread; ++i) {
        if (begin + t + i * Block::threads >= numel) break;
        write(t, places[i], entries[i]);
      }
    });
  }
};

// linalg/least_momentum.h, by how momenta are stored.
template <class S>
struct LeastMomentum {
  static constexpr double value = kLeastMomentumFP32;
};
template <>
struct LeastMomentum<double> {
  static constexpr double value = kLeastMomentumFP64;
};
template <>
struct LeastMomentum<Half> {
  static constexpr double value = kLeastMomentumFP16;
};
TORCHDION_HOST_DEVICE double least_momentum(Storage storage) {
  if (storage == Storage::float64) return kLeastMomentumFP64;
  return storage == Storage::float16 ? kLeastMomentumFP16 : kLeastMomentumFP32;
}

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
    using T = Wider<SM, SG>;
    if (rule.leaves_out()) return;
    const int64_t matrix = pairs.matrix(block.index());
    SM* m = static_cast<SM*>(M[matrix]);
    const SG* g = static_cast<const SG*>(G[matrix]);
    const T keep = static_cast<T>(rule.keep), factor = static_cast<T>(rule.total_factor());
    const T least = static_cast<T>(LeastMomentum<SM>::value);
    const bool keeps_all = rule.keeps_all(matrix);
    typename Block::template Registers<int64_t> found;
    block.each([&](int t) { found[t] = 0; });
    pairs.replace(block, m, g, NoOutput(), [&](int t, SM& momentum, SG entry, NoOutput::Entry&) {
      const T gradient = factor * counted(rule, static_cast<T>(load(entry)), found[t]);
      if (!keeps_all) store(momentum, accumulated(least, keep, static_cast<T>(load(momentum)), gradient));
    });
    block.each([&](int t) {
      if (rule.zeroed) block.add(rule.zeroed, found[t]);
    });
  }
};

// X ← factors[1] X + factors[0] s U as the rule has it, but for matrices with a number in `unchanged` that is not 0.
template <class SX, class SU>
struct Axpby {
  static constexpr int threads = 256;
  void* const* X;
  void* const* U;
  Pairs pairs;
  const void* factors;     // in the wider type
  const float* unchanged;  // or null
  DirectionRule rule;
  const void* scales;  // s of each matrix, in the wider type; or null: 1

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{2 * sizeof(SX) + sizeof(SU)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SX, SU>;
    const int64_t matrix = pairs.matrix(block.index());
    if (unchanged && unchanged[matrix] != 0) return;
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
    return left ? static_cast<T>(of_factors) * sqrt(static_cast<T>(left[row])) : T(0);
  }
  template <class T>
  TORCHDION_DEVICE T right_of(int64_t col) const {
    return right ? sqrt(static_cast<T>(right[col])) : T(0);
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

// A ← α B, unless it is left out.
template <class SA, class SB>
struct Copy {
  static constexpr int threads = 256;
  void* const* A;
  void* const* B;
  Pairs pairs;
  double alpha;
  const float* left_out;  // or null

  Work work(int64_t blocks) const { return {pairs.entries(blocks) * int64_t{sizeof(SA) + sizeof(SB)}}; }

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    using T = Wider<SA, SB>;
    if (left_out && *left_out != 0) return;
    SA* a = static_cast<SA*>(A[pairs.matrix(block.index())]);
    const SB* b = static_cast<const SB*>(B[pairs.matrix(block.index())]);
    const T factor = static_cast<T>(alpha);
    pairs.each(
        block, [&](int64_t, int64_t k) { return b[k]; },
        [&](int, int64_t i, SB entry) { store(a[i], factor * static_cast<T>(load(entry))); });
  }
};

// A ← 0 where one of these is there and not 0: one number for all matrices, one for each.
template <class SA>
struct Clear {
  static constexpr int threads = 256;
  void* const* A;
  Pairs pairs;
  const float* left_out;
  const float* unchanged;

  Work work(int64_t) const { return {}; }  // of a step that is taken

  template <class Block>
  TORCHDION_DEVICE void operator()(Block block) const {
    const int64_t matrix = pairs.matrix(block.index());
    if (!(left_out && *left_out != 0) && !(unchanged && unchanged[matrix] != 0)) return;
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
