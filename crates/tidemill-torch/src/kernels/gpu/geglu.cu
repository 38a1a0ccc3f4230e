// GEGLU of x [rows, 2 W], which holds a and then b in each row: a gelu(b), with the exact GELU. `bias` [2 W], if there is one, is added
// to x first. A thread takes some of [rows, W] at once.

struct Sizes {
  // W, in Wides, and how many there are of them in [rows, W]: few enough for 32 bits, in which a division is fast.
  unsigned width, all;
};

// The normal distribution's cumulative function.
__device__ inline float cumulative(float b) { return 0.5f * (1.0f + erff(b * 0.70710678f)); }

extern "C" __global__ void forward(const Wide* x, const Wide* bias, Wide* output, Sizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.all; i += gridDim.x * blockDim.x) {
    unsigned row = i / s.width;
    const Wide* at = x + i + row * s.width;
    Wide a = at[0], b = at[s.width], to_a{}, to_b{};
    if (bias) to_a = bias[i - row * s.width], to_b = bias[i - row * s.width + s.width];
    for (int j = 0; j < WIDE; ++j) {
      float of_b = get(b.of[j]) + get(to_b.of[j]);
      put(a.of + j, (get(a.of[j]) + get(to_a.of[j])) * of_b * cumulative(of_b));
    }
    output[i] = a;
  }
}

// Makes a and b, of x and its bias, their gradients.
__device__ inline void differentiate(Wide& a, Wide& b, Wide to_a, Wide to_b, Wide grad) {
  for (int j = 0; j < WIDE; ++j) {
    float of_a = get(a.of[j]) + get(to_a.of[j]), of_b = get(b.of[j]) + get(to_b.of[j]), g = get(grad.of[j]);
    float c = cumulative(of_b), density = 0.39894228f * expf(-0.5f * of_b * of_b);
    put(a.of + j, g * of_b * c);
    put(b.of + j, g * of_a * (c + of_b * density));
  }
}

extern "C" __global__ void backward(const Wide* x, const Wide* grad, Wide* to_x, Sizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.all; i += gridDim.x * blockDim.x) {
    unsigned at = i + i / s.width * s.width;
    Wide a = x[at], b = x[at + s.width];
    differentiate(a, b, Wide{}, Wide{}, grad[i]);
    to_x[at] = a;
    to_x[at + s.width] = b;
  }
}

// With a bias, whose gradient is x's added up over rows: what the blocks of one y have of it is found [y, 2 W]. A warp takes as many
// Wides of a row as it has lanes; the warps of a block, and the blocks of one x, share the rows.
extern "C" __global__ void backward_with_bias(const Wide* x, const Wide* bias, const Wide* grad, Wide* to_x, float* found, Sizes s) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  unsigned column = blockIdx.x * WARP + lane, rows = s.all / s.width;
  float sums[2 * WIDE] = {};
  if (column < s.width) {
    Wide to_a = bias[column], to_b = bias[column + s.width];
    for (unsigned row = blockIdx.y * warps + warp; row < rows; row += gridDim.y * warps) {
      unsigned at = 2 * row * s.width + column;
      Wide a = x[at], b = x[at + s.width];
      differentiate(a, b, to_a, to_b, grad[row * s.width + column]);
      to_x[at] = a;
      to_x[at + s.width] = b;
      for (int j = 0; j < WIDE; ++j) sums[j] += get(a.of[j]), sums[WIDE + j] += get(b.of[j]);
    }
  }
  // The lanes' sums lie side by side: so they meet in no bank.
  for (int j = 0; j < 2 * WIDE; ++j) shared[(2 * WIDE * warp + j) * WARP + lane] = sums[j];
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * WIDE * WARP; i += blockDim.x) {
    unsigned j = i / WARP, of = blockIdx.x * WARP + i % WARP;
    if (of >= s.width) continue;
    float total = 0;
    for (int w = 0; w < warps; ++w) total += shared[2 * WIDE * WARP * w + i];
    found[((size_t)2 * blockIdx.y + j / WIDE) * WIDE * s.width + WIDE * of + j % WIDE] = total;
  }
}
