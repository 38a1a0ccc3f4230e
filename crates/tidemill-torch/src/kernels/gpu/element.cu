// What the kernels for GPUs share. They are compiled by NVRTC, behind this; ELEMENT is float or bf16, arithmetic is float.

typedef unsigned short bf16;
typedef ELEMENT T;

__device__ inline float get(float x) { return x; }
__device__ inline float get(bf16 x) { return __uint_as_float((unsigned)x << 16); }
__device__ inline void put(float* to, float value) { *to = value; }
__device__ inline void put(bf16* to, float value) {
  unsigned bits = __float_as_uint(value);
  // Of a NaN the addition could make something else.
  *to = value != value ? 0x7FC0 : (bf16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

