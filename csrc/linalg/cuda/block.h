// Block programs: CUDA kernels that g++ compiles too, so that tests run their logic where there is no GPU.
//
// A program is a struct of plain values (its arguments) with `threads` and operator()(Block). It consists of phases:
// block.each(f) calls f(t) for every thread t of the block and then synchronizes them. On the device that is
// f(threadIdx.x) and __syncthreads(); on the host a loop, forwards or backwards: a program whose threads race within a
// phase gives another result in one of the two orders. What a thread keeps over phases lies in a Registers, what all
// share in shared memory. No torch header and no C++20: nvcc compiles this.
//
// block.each_warp(f) is a phase of warps, which tensor cores need (tensor_cores.h): f(w) for every warp w, with what it
// keeps in a WarpRegisters. Copies into shared memory may run beside phases: begin_copy() by a thread, end_copies() and
// wait_for_copies() by the block. On the host nothing is copied before it is waited for.
//
// A cluster program has `ranks` and operator()(Cluster): so many blocks work on one matrix. cluster.each_rank(f) calls
// f(block, rank) for every rank and then waits for all of them; what one has written to global memory, the others read
// from then on. Where a cluster has fewer blocks, where the hardware has none, and on the host, a block takes several
// ranks in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_pipeline_primitives.h>
#else
#include <cstring>
#include <deque>
#include <stdexcept>
#include <utility>
#include <vector>
#endif

#include "linalg/host_device.h"

// The same sources make two sets of functions: those that run on CUDA, and those that tests run on the host.
#ifdef TORCHDION_EMULATED
#define TORCHDION_CUDA_NAMESPACE emulated
#else
#define TORCHDION_CUDA_NAMESPACE cuda
#endif

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

#ifdef __CUDACC__

template <int Threads>
struct Block {
  static constexpr int threads = Threads;
  char* memory;

  TORCHDION_DEVICE int64_t index() const { return blockIdx.x; }

  template <class Phase>
  TORCHDION_DEVICE void each(Phase phase) {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  template <class T>
  TORCHDION_DEVICE T* shared(size_t offset_bytes = 0) {
    return reinterpret_cast<T*>(memory + offset_bytes);
  }

  template <class T>
  struct Registers {
    T value;
    TORCHDION_DEVICE T& operator[](int) { return value; }
  };

  static constexpr int kWarp = 32;

  template <class Phase>
  TORCHDION_DEVICE void each_warp(Phase phase) {
    phase(static_cast<int>(threadIdx.x) / kWarp);
    __syncthreads();
  }

  template <class T>
  using WarpRegisters = Registers<T>;  // a thread's part of a warp's

  // 16 bytes at a multiple of 16, or zeros. All copies that threads have begun since the last end_copies() are one
  // group; wait_for_copies() leaves so many groups, the last ones, under way.
  TORCHDION_DEVICE void begin_copy(void* shared, const void* global, bool is_there) {
    __pipeline_memcpy_async(shared, global, 16, is_there ? 0 : 16);
  }
  TORCHDION_DEVICE void end_copies() { __pipeline_commit(); }
  template <int Groups>
  TORCHDION_DEVICE void wait_for_copies() {
    __pipeline_wait_prior(Groups);
    __syncthreads();
  }

  // Memory that is read soon: it may come near.
  TORCHDION_DEVICE void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

  // Of a few calls per block: order does not matter to integers.
  TORCHDION_DEVICE void add(int64_t* counter, int64_t count) {
    if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(count));
  }
};

template <int Threads, int Ranks>
struct Cluster {
  char* memory;

  TORCHDION_DEVICE int64_t index() const { return blockIdx.x / blocks(); }

  template <class Body>
  TORCHDION_DEVICE void each_rank(Body body) {
    for (unsigned rank = first_rank(); rank < Ranks; rank += blocks()) {
      Block<Threads> block{memory};
      body(block, static_cast<int>(rank));
    }
    synchronize();
  }

 private:
#if __CUDA_ARCH__ >= 900
  static TORCHDION_DEVICE unsigned blocks() {
    unsigned count;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
  }
  static TORCHDION_DEVICE unsigned first_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
  }
  // Releases what this block has written and acquires what the others have.
  static TORCHDION_DEVICE void synchronize() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
#else
  static TORCHDION_DEVICE unsigned blocks() { return 1; }
  static TORCHDION_DEVICE unsigned first_rank() { return 0; }
  static TORCHDION_DEVICE void synchronize() { __syncthreads(); }
#endif
};

#else

template <int Threads>
struct Block {
  static constexpr int threads = Threads;
  char* memory;
  int64_t number;
  bool backwards;

  int64_t index() const { return number; }

  template <class Phase>
  void each(Phase phase) {
    for (int i = 0; i < Threads; ++i) phase(backwards ? Threads - 1 - i : i);
  }

  template <class T>
  T* shared(size_t offset_bytes = 0) {
    return reinterpret_cast<T*>(memory + offset_bytes);
  }

  template <class T>
  struct Registers {
    T values[Threads];
    T& operator[](int thread) { return values[thread]; }
  };

  static constexpr int kWarp = 32;

  template <class Phase>
  void each_warp(Phase phase) {
    constexpr int kWarps = Threads / kWarp;
    for (int i = 0; i < kWarps; ++i) phase(backwards ? kWarps - 1 - i : i);
  }

  template <class T>
  struct WarpRegisters {
    T values[Threads / kWarp];
    T& operator[](int warp) { return values[warp]; }
  };

  void begin_copy(void* shared, const void* global, bool is_there) {
    if (reinterpret_cast<uintptr_t>(global) % kCopied != 0) throw std::logic_error("a copy from between 16 bytes");
    begun.push_back({shared, global, is_there});
  }
  void end_copies() { groups.push_back(std::exchange(begun, {})); }
  template <int Groups>
  void wait_for_copies() {
    for (; groups.size() > Groups; groups.pop_front()) {
      for (const Copy& copy : groups.front()) {
        std::memset(copy.shared, 0, kCopied);
        if (copy.is_there) std::memcpy(copy.shared, copy.global, kCopied);
      }
    }
  }

  void prefetch(const void*) {}

  void add(int64_t* counter, int64_t count) { *counter += count; }

  struct Copy {
    void* shared;
    const void* global;
    bool is_there;
  };
  static constexpr size_t kCopied = 16;
  std::vector<Copy> begun = {};
  std::deque<std::vector<Copy>> groups = {};
};

template <int Threads, int Ranks>
struct Cluster {
  char* memory;
  size_t bytes;  // of it
  int64_t number;
  bool backwards;

  int64_t index() const { return number; }

  template <class Body>
  void each_rank(Body body) {
    for (int i = 0; i < Ranks; ++i) {
      std::memset(memory, 0xff, bytes);  // the ranks' memories are not one
      Block<Threads> block{memory, number, backwards};
      body(block, backwards ? Ranks - 1 - i : i);
    }
  }
};

#endif

// A phase in which one thread calls f().
template <class Block, class F>
TORCHDION_DEVICE void once(Block& block, const F& f) {
  block.each([&](int t) {
    if (t == 0) f();
  });
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
