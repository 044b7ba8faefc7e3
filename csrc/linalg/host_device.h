// Functions that a GPU runs too, where nvcc compiles them.
#pragma once

#ifdef __CUDACC__
#define TORCHDION_DEVICE __device__ __forceinline__
#define TORCHDION_HOST_DEVICE __host__ __device__ __forceinline__
// Before a loop over an array that is to lie in registers.
#define TORCHDION_UNROLL _Pragma("unroll")
#else
#define TORCHDION_DEVICE inline
#define TORCHDION_HOST_DEVICE inline
#define TORCHDION_UNROLL
#endif
