// Layer normalisation of a sum: x + added, both [rows, W], or x alone, and its normalised rows. A warp takes a row, four elements at a
// time. All sums are added up in a fixed order.

struct Rows {
  size_t rows;
  int width;
  // Whether weight and bias, and their gradients, are bf16; else float.
  int bf16_weights;
  float eps;
};

struct alignas(4 * sizeof(T)) Four {
  T of[4];
};

__device__ inline float layer_weight(const void* weights, int c, Rows r) {
  return r.bf16_weights ? get(((const bf16*)weights)[c]) : ((const float*)weights)[c];
}

// Without an addition `sum` is x. Mean and reciprocal standard deviation of each row: [rows, 2].
extern "C" __global__ void normalise_sums(const T* x, const T* added, const void* weights, const void* biases, T* sum, T* output,
                                          float* moments, Rows r) {
  int lane = threadIdx.x % WARP, fours = r.width / 4;
  size_t row = (size_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  if (row >= r.rows) return;
  const Four *from = (const Four*)(x + row * r.width), *other = (const Four*)(added + row * r.width);
  Four *sums = (Four*)(sum + row * r.width), *to = (Four*)(output + row * r.width);
  float total = 0, squares = 0;
  for (int i = lane; i < fours; i += WARP) {
    Four v = from[i];
    if (added) {
      Four a = other[i];
      for (int j = 0; j < 4; ++j) put(v.of + j, get(v.of[j]) + get(a.of[j]));
      sums[i] = v;
    }
    for (int j = 0; j < 4; ++j) total += get(v.of[j]);
  }
  float mean = sum_of_warp(total) / r.width;
  for (int i = lane; i < fours; i += WARP) {
    Four v = sums[i];
    for (int j = 0; j < 4; ++j) squares += (get(v.of[j]) - mean) * (get(v.of[j]) - mean);
  }
  float rstd = rsqrtf(sum_of_warp(squares) / r.width + r.eps);
  for (int i = lane; i < fours; i += WARP) {
    Four v = sums[i];
    for (int j = 0; j < 4; ++j) {
      int c = 4 * i + j;
      put(v.of + j, (get(v.of[j]) - mean) * rstd * layer_weight(weights, c, r) + layer_weight(biases, c, r));
    }
    to[i] = v;
  }
  if (lane == 0) moments[2 * row] = mean, moments[2 * row + 1] = rstd;
}

// The gradient of x, with what comes to the sum itself; and of the rows of each block those of weight and bias: [blocks, 2, W].
extern "C" __global__ void gradients_of_sums(const T* sum, const T* to_sum, const T* grad, const void* weights, const float* moments,
                                             T* to_x, float* found, Rows r) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, fours = r.width / 4;
  // A lane always takes the same channels. The first of all fours lie side by side, then the second: so lanes meet in no bank.
  float *to_weights = shared + 2 * r.width * warp, *to_biases = to_weights + r.width;
  for (int i = lane; i < fours; i += WARP) {
    for (int j = 0; j < 4; ++j) to_weights[j * fours + i] = to_biases[j * fours + i] = 0;
  }
  for (size_t row = (size_t)blockIdx.x * warps + warp; row < r.rows; row += (size_t)gridDim.x * warps) {
    const Four *x = (const Four*)(sum + row * r.width), *grads = (const Four*)(grad + row * r.width);
    const Four* straight = (const Four*)(to_sum + row * r.width);
    Four* to = (Four*)(to_x + row * r.width);
    float mean = moments[2 * row], rstd = moments[2 * row + 1], across = 0, along = 0;
    for (int i = lane; i < fours; i += WARP) {
      Four v = x[i], g = grads[i];
      for (int j = 0; j < 4; ++j) {
        float n = (get(v.of[j]) - mean) * rstd, d = get(g.of[j]);
        to_weights[j * fours + i] += d * n;
        to_biases[j * fours + i] += d;
        d *= layer_weight(weights, 4 * i + j, r);
        across += d;
        along += d * n;
      }
    }
    across = sum_of_warp(across) / r.width;
    along = sum_of_warp(along) / r.width;
    for (int i = lane; i < fours; i += WARP) {
      Four v = x[i], g = grads[i], s = straight[i];
      for (int j = 0; j < 4; ++j) {
        float n = (get(v.of[j]) - mean) * rstd, d = get(g.of[j]) * layer_weight(weights, 4 * i + j, r);
        put(s.of + j, get(s.of[j]) + rstd * (d - across - n * along));
      }
      to[i] = s;
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * r.width; c += blockDim.x) {
    int at = c / r.width * r.width + c % 4 * fours + c % r.width / 4;
    float total = 0;
    for (int w = 0; w < warps; ++w) total += shared[2 * r.width * w + at];
    found[(size_t)2 * r.width * blockIdx.x + c] = total;
  }
}
