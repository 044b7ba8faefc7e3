// Block programs: CUDA kernels that g++ compiles too, so that tests run their logic where there is no GPU.
//
// A program is a struct of plain values (its arguments) with `threads` and operator()(Block). It consists of phases:
// block.each(f) calls f(t) for every thread t of the block and then synchronizes them. On the device that is
// f(threadIdx.x) and __syncthreads(); on the host a loop, forwards or backwards: a program whose threads race within a
// phase gives another result in one of the two orders. What a thread keeps over phases lies in a Registers, what all
// share in shared memory. No torch header and no C++20: nvcc compiles this.
//
// A cluster program has `ranks` and operator()(Cluster): so many blocks work on one matrix. cluster.each_rank(f) calls
// f(block, rank) for every rank and then waits for all of them; what one has written to global memory, the others read
// from then on. Where a cluster has fewer blocks, where the hardware has none, and on the host, a block takes several
// ranks in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#ifndef __CUDACC__
#include <cstring>
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

  void add(int64_t* counter, int64_t count) { *counter += count; }
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

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
