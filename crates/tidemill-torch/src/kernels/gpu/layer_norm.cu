// Layer normalisation of a sum: x + added, both [rows, W], or x alone, and its normalised rows. A
// warp takes one row, four elements per lane at a time. All sums are added up in a fixed order.

struct LayerNormRows {
  size_t rows;
  int width;
  // Whether weight and bias, and their gradients, are bf16 or float.
  int has_bf16_weights;
  float eps;
};

struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

__device__ inline float load_layer_weight(const void* weights, int c, LayerNormRows r) {
  return r.has_bf16_weights ? load(((const bf16*)weights)[c]) : ((const float*)weights)[c];
}

// Writes the sum, its normalised rows, and mean and reciprocal standard deviation of each row to
// `moments` [rows, 2]. `added` may be null;
// `sum` is x then.
extern "C" __global__ void add_layer_norm_forward(const T* x, const T* added, const void* weights, const void* biases, T* sum,
                                                  T* output, float* moments, LayerNormRows r) {
  int lane = threadIdx.x % WARP, fours = r.width / 4;
  size_t row = (size_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  if (row >= r.rows) return;
  const Four *inputs = (const Four*)(x + row * r.width), *others = (const Four*)(added + row * r.width);
  Four *sums = (Four*)(sum + row * r.width), *outputs = (Four*)(output + row * r.width);
  float total = 0, squares = 0;
  for (int i = lane; i < fours; i += WARP) {
    Four v = inputs[i];
    if (added) {
      Four a = others[i];
      for (int j = 0; j < 4; ++j) store(v.at + j, load(v.at[j]) + load(a.at[j]));
      sums[i] = v;
    }
    for (int j = 0; j < 4; ++j) total += load(v.at[j]);
  }
  float mean = warp_sum(total) / r.width;
  for (int i = lane; i < fours; i += WARP) {
    Four v = sums[i];
    for (int j = 0; j < 4; ++j) squares += (load(v.at[j]) - mean) * (load(v.at[j]) - mean);
  }
  float rstd = rsqrtf(warp_sum(squares) / r.width + r.eps);
  for (int i = lane; i < fours; i += WARP) {
    Four v = sums[i];
    for (int j = 0; j < 4; ++j) {
      int c = 4 * i + j;
      store(v.at + j, (load(v.at[j]) - mean) * rstd * load_layer_weight(weights, c, r) + load_layer_weight(biases, c, r));
    }
    outputs[i] = v;
  }
  if (lane == 0) moments[2 * row] = mean, moments[2 * row + 1] = rstd;
}

// Writes the gradient of x, to which the gradient of the sum is added. The gradients of weight and
// bias are sums over rows; each block writes the sums over its own rows to `partial_sums` [blocks,
// 2, W].
extern "C" __global__ void add_layer_norm_backward(const T* sum, const T* sum_grad, const T* grad, const void* weights,
                                                   const float* moments, T* x_grad, float* partial_sums, LayerNormRows r) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, fours = r.width / 4;
  // A lane always takes the same channels. The first elements of all Fours lie side by side, then
  // the second ones and so on, so that the lanes access different banks of shared memory.
  float *weight_grads = shared + 2 * r.width * warp, *bias_grads = weight_grads + r.width;
  for (int i = lane; i < fours; i += WARP) {
    for (int j = 0; j < 4; ++j) weight_grads[j * fours + i] = bias_grads[j * fours + i] = 0;
  }
  for (size_t row = (size_t)blockIdx.x * warps + warp; row < r.rows; row += (size_t)gridDim.x * warps) {
    const Four *x = (const Four*)(sum + row * r.width), *grads = (const Four*)(grad + row * r.width);
    const Four* sum_grads = (const Four*)(sum_grad + row * r.width);
    Four* x_grads = (Four*)(x_grad + row * r.width);
    // d is the gradient of the output, w the weight, n the normalised row.
    float mean = moments[2 * row], rstd = moments[2 * row + 1], mean_dw = 0, mean_dwn = 0;
    for (int i = lane; i < fours; i += WARP) {
      Four v = x[i], g = grads[i];
      for (int j = 0; j < 4; ++j) {
        float n = (load(v.at[j]) - mean) * rstd, d = load(g.at[j]);
        weight_grads[j * fours + i] += d * n;
        bias_grads[j * fours + i] += d;
        d *= load_layer_weight(weights, 4 * i + j, r);
        mean_dw += d;
        mean_dwn += d * n;
      }
    }
    mean_dw = warp_sum(mean_dw) / r.width;
    mean_dwn = warp_sum(mean_dwn) / r.width;
    for (int i = lane; i < fours; i += WARP) {
      Four v = x[i], g = grads[i], s = sum_grads[i];
      for (int j = 0; j < 4; ++j) {
        float n = (load(v.at[j]) - mean) * rstd, d = load(g.at[j]) * load_layer_weight(weights, 4 * i + j, r);
        store(s.at + j, load(s.at[j]) + rstd * (d - mean_dw - n * mean_dwn));
      }
      x_grads[i] = s;
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * r.width; c += blockDim.x) {
    int slot = c / r.width * r.width + c % 4 * fours + c % r.width / 4;
    float total = 0;
    for (int w = 0; w < warps; ++w) total += shared[2 * r.width * w + slot];
    partial_sums[(size_t)2 * r.width * blockIdx.x + c] = total;
  }
}
