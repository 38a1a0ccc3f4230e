// What all kernels share. The kernels are compiled by NVRTC with this in front of them. ELEMENT is
// float or bf16; arithmetic is float.

typedef unsigned short bf16;
typedef ELEMENT T;

__device__ inline float load(float x) { return x; }
__device__ inline float load(bf16 x) { return __uint_as_float((unsigned)x << 16); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(bf16* to, float value) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*to) : "f"(value));
#else
  unsigned bits = __float_as_uint(value);
  // The addition could turn a NaN into a number.
  *to = value != value ? 0x7FC0 : (bf16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
#endif
}

// A vector of 16 bytes: the widest load and store of a thread.
#define VECTOR_SIZE (int)(16 / sizeof(T))
struct alignas(16) Vector {
  T at[VECTOR_SIZE];
};

#ifndef WARP
#define WARP 32
#endif

// The sum over all lanes of a warp, in each lane.
__device__ inline float warp_sum(float x) {
  for (int distance = WARP / 2; distance; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
  return x;
}
