// GEGLU of x [rows, 2 W], which holds a and then b in each row: a gelu(b), with the exact GELU.
// `bias` [2 W] may be null; it is added to x first. A thread takes one Vector of [rows, W] at a
// time.

struct GegluSizes {
  // W in Vectors, and the number of Vectors in [rows, W]: few enough for 32 bits, in which a
  // division is fast.
  unsigned width, total;
};

// The normal distribution's cumulative function.
__device__ inline float normal_cdf(float b) { return 0.5f * (1.0f + erff(b * 0.70710678f)); }

extern "C" __global__ void geglu_forward(const Vector* x, const Vector* bias, Vector* output, GegluSizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.total; i += gridDim.x * blockDim.x) {
    unsigned row = i / s.width;
    const Vector* at = x + i + row * s.width;
    Vector a = at[0], b = at[s.width], a_bias{}, b_bias{};
    if (bias) a_bias = bias[i - row * s.width], b_bias = bias[i - row * s.width + s.width];
    for (int j = 0; j < VECTOR_SIZE; ++j) {
      float b_value = load(b.at[j]) + load(b_bias.at[j]);
      store(a.at + j, (load(a.at[j]) + load(a_bias.at[j])) * b_value * normal_cdf(b_value));
    }
    output[i] = a;
  }
}

// That function and its density. For bf16 both by one exponential: Abramowitz and Stegun 7.1.26,
// whose error is at most 7e-8. With erff and expf the arithmetic would take longer than the memory.
__device__ inline void normal_cdf_and_density(float b, float& cdf, float& density) {
  if (sizeof(T) == 4) {
    cdf = normal_cdf(b), density = 0.39894228f * expf(-0.5f * b * b);
    return;
  }
  float e = __expf(-0.5f * b * b), t = __fdividef(1.0f, 1.0f + 0.23164189f * fabsf(b));
  float tail = 0.5f * e * t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  cdf = b < 0 ? tail : 1.0f - tail, density = 0.39894228f * e;
}

// Replaces a and b by their gradients.
__device__ inline void differentiate(Vector& a, Vector& b, Vector a_bias, Vector b_bias, Vector grad) {
  for (int j = 0; j < VECTOR_SIZE; ++j) {
    float a_value = load(a.at[j]) + load(a_bias.at[j]), b_value = load(b.at[j]) + load(b_bias.at[j]), g = load(grad.at[j]);
    float cdf, density;
    normal_cdf_and_density(b_value, cdf, density);
    store(a.at + j, g * b_value * cdf);
    store(b.at + j, g * a_value * (cdf + b_value * density));
  }
}

extern "C" __global__ void geglu_backward(const Vector* x, const Vector* grad, Vector* x_grad, GegluSizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.total; i += gridDim.x * blockDim.x) {
    unsigned at = i + i / s.width * s.width;
    Vector a = x[at], b = x[at + s.width];
    differentiate(a, b, Vector{}, Vector{}, grad[i]);
    x_grad[at] = a;
    x_grad[at + s.width] = b;
  }
}

// The backward pass with a bias, whose gradient is the sum of the gradient of x over rows. The
// blocks of one y write their part of that sum to `partial_sums` [y, 2 W]. A warp takes as many
// Vectors of a row as it has lanes; the warps of a block, and the blocks of one x, share the rows.
extern "C" __global__ void geglu_backward_with_bias(const Vector* x, const Vector* bias, const Vector* grad, Vector* x_grad,
                                                    float* partial_sums, GegluSizes s) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  unsigned column = blockIdx.x * WARP + lane, rows = s.total / s.width;
  float sums[2 * VECTOR_SIZE] = {};
  if (column < s.width) {
    Vector a_bias = bias[column], b_bias = bias[column + s.width];
    for (unsigned row = blockIdx.y * warps + warp; row < rows; row += gridDim.y * warps) {
      unsigned at = 2 * row * s.width + column;
      Vector a = x[at], b = x[at + s.width];
      differentiate(a, b, a_bias, b_bias, grad[row * s.width + column]);
      x_grad[at] = a;
      x_grad[at + s.width] = b;
      for (int j = 0; j < VECTOR_SIZE; ++j) sums[j] += load(a.at[j]), sums[VECTOR_SIZE + j] += load(b.at[j]);
    }
  }
  // The lanes' sums lie side by side, so that they are in different banks of shared memory.
  for (int j = 0; j < 2 * VECTOR_SIZE; ++j) shared[(2 * VECTOR_SIZE * warp + j) * WARP + lane] = sums[j];
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * VECTOR_SIZE * WARP; i += blockDim.x) {
    unsigned j = i / WARP, vector = blockIdx.x * WARP + i % WARP;
    if (vector >= s.width) continue;
    float total = 0;
    for (int w = 0; w < warps; ++w) total += shared[2 * VECTOR_SIZE * WARP * w + i];
    size_t half = (size_t)2 * blockIdx.y + j / VECTOR_SIZE;
    partial_sums[half * VECTOR_SIZE * s.width + VECTOR_SIZE * vector + j % VECTOR_SIZE] = total;
  }
}
