// launch(): runs a block program on a grid of blocks, on the device or, in tests, on the host. A program says what work
// a grid of its blocks is: work(blocks), for recorders.
#pragma once

#include "linalg/cuda/block.h"
#include "linalg/recorder.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#else
#include <algorithm>
#include <cstdlib>
#include <vector>
#endif

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

// A cudaStream_t, without CUDA's headers.
using Stream = void*;

template <class Program>
void record_launch(const Program& program, int64_t blocks) {
  if (is_recording()) record({name_of(typeid(Program)), blocks, Program::threads, program.work(blocks)});
}

#ifdef __CUDACC__

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("torchdion: CUDA says: ") + cudaGetErrorString(error));
}

// How many blocks of a program are to run on a multiprocessor at once, which bounds their registers.
template <class Program>
constexpr decltype(Program::blocks_at_once) blocks_at_once(int) {
  return Program::blocks_at_once;
}
template <class Program>
constexpr int blocks_at_once(...) {
  return 1;
}

template <class Program>
__global__ void __launch_bounds__(Program::threads, blocks_at_once<Program>(0))
    run_program(const __grid_constant__ Program program) {
  extern __shared__ __align__(128) char memory[];
  program(Block<Program::threads>{memory});
}

template <class Program>
void launch(const Program& program, int64_t blocks, size_t shared_bytes, Stream stream) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (blocks == 0) return;
  record_launch(program, blocks);
  if (shared_bytes > kWithoutAsking) {
    check(cudaFuncSetAttribute(run_program<Program>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  }
  run_program<<<static_cast<unsigned>(blocks), Program::threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(
      program);
  check(cudaGetLastError());
}

template <class Program>
__global__ void __launch_bounds__(Program::threads) run_cluster_program(const __grid_constant__ Program program) {
  extern __shared__ __align__(128) char memory[];
  program(Cluster<Program::threads, Program::ranks>{memory});
}

// The current device runs a kernel's code for clusters. What it makes of an older device's PTX has none.
inline bool knows_clusters(const void* kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 90;
}

template <class Program>
void launch_clusters(const Program& program, int64_t clusters, size_t shared_bytes, Stream stream) {
  if (clusters == 0) return;
  record_launch(program, clusters);
  const void* kernel = reinterpret_cast<const void*>(run_cluster_program<Program>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  const unsigned blocks = knows_clusters(kernel) ? program.blocks_of_cluster() : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters) * blocks);
  config.blockDim = dim3(Program::threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = blocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = blocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, run_cluster_program<Program>, program));
}

#else

// In which order the host goes through blocks and threads.
extern bool backwards;

// Whether programs run. Else launches and products are recorded alone: their matrices need no memory.
extern bool runs_programs;

template <class Program>
void launch(const Program& program, int64_t blocks, size_t shared_bytes, Stream) {
  if (blocks == 0) return;
  record_launch(program, blocks);
  if (!runs_programs) return;
  // What a kernel has not written holds anything: a NaN in every floating-point type.
  std::vector<std::max_align_t> memory(shared_bytes / sizeof(std::max_align_t) + 1);
  for (int64_t i = 0; i < blocks; ++i) {
    char* bytes = reinterpret_cast<char*>(memory.data());
    std::fill(bytes, bytes + memory.size() * sizeof(std::max_align_t), '\xff');
    program(Block<Program::threads>{bytes, backwards ? blocks - 1 - i : i, backwards});
  }
}

template <class Program>
void launch_clusters(const Program& program, int64_t clusters, size_t shared_bytes, Stream) {
  if (clusters == 0) return;
  record_launch(program, clusters);
  if (!runs_programs) return;
  std::vector<std::max_align_t> memory(shared_bytes / sizeof(std::max_align_t) + 1);
  for (int64_t i = 0; i < clusters; ++i) {
    program(Cluster<Program::threads, Program::ranks>{reinterpret_cast<char*>(memory.data()),
                                                      memory.size() * sizeof(std::max_align_t),
                                                      backwards ? clusters - 1 - i : i, backwards});
  }
}

#endif

TORCHDION_HOST_DEVICE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
