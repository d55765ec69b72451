// LINS_EVERYWHERE before a function: inlined, and compiled for the device as well where the
// compiler can. What the kernels of both compute with it has the same bits, as long as neither
// contracts products and sums by itself: fused multiply-adds stand in the source.
#pragma once

#ifdef __CUDACC__
#define LINS_EVERYWHERE __host__ __device__ __forceinline__
#else
#define LINS_EVERYWHERE [[gnu::always_inline]] inline
#endif
