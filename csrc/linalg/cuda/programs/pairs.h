// Two lists of matrices, entry by entry, each run of neighbours in one load and one store.
#pragma once

#include <type_traits>

#include "linalg/cuda/launch.h"
#include "linalg/cuda/programs/sums.h"
#include "linalg/cuda/storage.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

inline constexpr int kElementsPerThread = 8;  // loads in flight

// The distances between neighbours of one of two equally shaped matrices, in entries.
struct Strides {
  int64_t row = 0, col = 1;
};

// Entries that lie one after another and are read or written at once.
template <class S, int Count>
struct alignas(Count * sizeof(S) < 16 ? Count * sizeof(S) : 16) Run {
  S entries[Count];
};

// Writes a run in as few stores as there can be. An assignment would become one store for each entry where code beside
// it writes single ones.
template <class S, int Count>
TORCHDION_DEVICE void write_run(S* target, const Run<S, Count>& run) {
#ifdef __CUDACC__
  constexpr size_t kBytes = Count * sizeof(S) < 16 ? Count * sizeof(S) : 16, kWords = Count * sizeof(S) / kBytes;
  using Short = std::conditional_t<kBytes == 2, unsigned short, unsigned int>;
  using Word = std::conditional_t<kBytes <= 4, Short, std::conditional_t<kBytes == 8, uint2, uint4>>;
  static_assert(sizeof(Word) == kBytes, "what a thread writes at once");
  Word words[kWords];
  memcpy(words, &run, sizeof words);
  TORCHDION_UNROLL
  for (size_t i = 0; i < kWords; ++i) __stwb(reinterpret_cast<Word*>(target) + i, words[i]);
#else
  *reinterpret_cast<Run<S, Count>*>(target) = run;
#endif
}

template <class S>
TORCHDION_DEVICE bool is_aligned(const S* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Whether runs of so many entries may begin at `data`.
template <int Count, class S>
TORCHDION_DEVICE bool is_run_of(const S* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Run<S, Count>) == 0;
}

// Of runs of so many entries at first, first + step, …: calls whole(first) for AtOnce of them at a time, as far as all
// of these end before `end`, and single(i) for each entry of the others. Without `in_runs` single(i) for all.
template <int Count, int AtOnce, class Whole, class Single>
TORCHDION_DEVICE void each_in_runs(int64_t first, int64_t end, int64_t step, bool in_runs, const Whole& whole,
                                   const Single& single) {
  for (; in_runs && first + (AtOnce - 1) * step + Count <= end; first += AtOnce * step) whole(first);
  for (; first < end; first += step) {
    for (int64_t i = first; i < first + Count && i < end; ++i) single(i);
  }
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

  // A thread asks for all that it reads before it writes anything.
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

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
