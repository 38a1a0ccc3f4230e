// What the kernels for GPUs share. They are compiled by NVRTC, behind this; ELEMENT is float or bf16, arithmetic is float.

typedef unsigned short bf16;
typedef ELEMENT T;

__device__ inline float get(float x) { return x; }
__device__ inline float get(bf16 x) { return __uint_as_float((unsigned)x << 16); }
__device__ inline void put(float* to, float value) { *to = value; }
__device__ inline void put(bf16* to, float value) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*to) : "f"(value));
#else
  unsigned bits = __float_as_uint(value);
  // Of a NaN the addition could make something else.
  *to = value != value ? 0x7FC0 : (bf16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
#endif
}

// What a thread had better read and write at once.
#define WIDE (int)(16 / sizeof(T))
struct alignas(16) Wide {
  T of[WIDE];
};

#ifndef WARP
#define WARP 32
#endif

// Of all lanes of a warp, for each.
__device__ inline float sum_of_warp(float x) {
  for (int apart = WARP / 2; apart; apart /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, apart);
  return x;
}
