// GEGLU of x [rows, 2 W], which holds a and then b in each row: a gelu(b), with the exact GELU. A thread takes some of [rows, W] at once.

struct Sizes {
  // W, in Wides, and how many there are of them in [rows, W]: few enough for 32 bits, in which a division is fast.
  unsigned width, all;
};

// The normal distribution's cumulative function.
__device__ inline float cumulative(float b) { return 0.5f * (1.0f + erff(b * 0.70710678f)); }

extern "C" __global__ void forward(const Wide* x, Wide* output, Sizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.all; i += gridDim.x * blockDim.x) {
    const Wide* at = x + i + i / s.width * s.width;
    Wide a = at[0], b = at[s.width];
    for (int j = 0; j < WIDE; ++j) put(a.of + j, get(a.of[j]) * get(b.of[j]) * cumulative(get(b.of[j])));
    output[i] = a;
  }
}

extern "C" __global__ void backward(const Wide* x, const Wide* grad, Wide* to_x, Sizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.all; i += gridDim.x * blockDim.x) {
    unsigned at = i + i / s.width * s.width;
    Wide a = x[at], b = x[at + s.width], grads = grad[i];
    for (int j = 0; j < WIDE; ++j) {
      float of_a = get(a.of[j]), of_b = get(b.of[j]), g = get(grads.of[j]);
      float c = cumulative(of_b), density = 0.39894228f * expf(-0.5f * of_b * of_b);
      put(a.of + j, g * of_b * c);
      put(b.of + j, g * of_a * (c + of_b * density));
    }
    to_x[at] = a;
    to_x[at + s.width] = b;
  }
}
