// Group normalisation, with or without SiLU, of channels-last images. x [N, P, C]: N
// images of P pixels of C channels, in G groups of D channels. Most kernels give each block a tile
// of pixels of one image; a thread takes one Vector of channels of every
// `rows`-th pixel. All sums are added up in a fixed order, so the same input gives the same output.

struct GroupNormShape {
  int images, pixels, channels, groups;
  // Pixels of a tile, tiles of an image, and threads that share a pixel.
  int tile, tiles, lanes;
  // Whether SiLU follows.
  int silu;
  // Whether weight and bias, and their gradients, are bf16 or float.
  int has_bf16_weights;
  float eps;
};

// For blocks (tile, image): the offset of the block's tile in x, in Vectors.
__device__ inline size_t tile_start(GroupNormShape s) {
  return ((size_t)blockIdx.y * s.pixels + blockIdx.x * s.tile) * (s.channels / VECTOR_SIZE);
}
// The number of pixels of a tile; the last tile of an image may be smaller.
__device__ inline int tile_pixels(GroupNormShape s, int tile) { return min(s.tile, s.pixels - tile * s.tile); }

// The index of a channel in shared memory. The first elements of all Vectors lie side by side, then
// the second ones and so on, so that the lanes of a warp access different banks.
__device__ inline int channel_slot(int c, GroupNormShape s) {
  return c % VECTOR_SIZE * (s.channels / VECTOR_SIZE) + c / VECTOR_SIZE;
}

// Adds up two numbers per channel over the rows of a block: shared [rows, 2, C] to its first [2,
// C].
__device__ inline void block_sum(float* shared, GroupNormShape s) {
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * s.channels; i += blockDim.x) {
    for (int row = 1; row < blockDim.x / s.lanes; ++row) shared[i] += shared[2 * s.channels * row + i];
  }
  __syncthreads();
}

__device__ inline float load_weight(const void* weights, int c, GroupNormShape s) {
  return s.has_bf16_weights ? load(((const bf16*)weights)[c]) : ((const float*)weights)[c];
}

__device__ inline float sigmoid(float z) { return __fdividef(1.0f, 1.0f + (sizeof(T) == 2 ? __expf(-z) : expf(-z))); }

// Blocks (tile, image). Writes mean and sum of squared differences of each group of each tile:
// tile_moments [N, tiles, G, 2].
extern "C" __global__ void group_norm_tile_moments(const Vector* x, float* tile_moments, GroupNormShape s) {
  extern __shared__ float shared[];
  const Vector* tile = x + tile_start(s);
  int n = tile_pixels(s, blockIdx.x), vectors = s.channels / VECTOR_SIZE, rows = blockDim.x / s.lanes, row = threadIdx.x / s.lanes;
  float *sums = shared, *squares = shared + s.channels;
  for (int w = threadIdx.x % s.lanes; w < vectors; w += s.lanes) {
    // Differences to the first pixel are summed, so that little precision is lost where the mean is
    // far from zero.
    Vector first = tile[w];
    float sum[VECTOR_SIZE] = {}, square[VECTOR_SIZE] = {};
# pragma unroll 4
    for (int p = row; p < n; p += rows) {
      Vector v = tile[p * vectors + w];
      for (int j = 0; j < VECTOR_SIZE; ++j) {
        float difference = load(v.at[j]) - load(first.at[j]);
        sum[j] += difference;
        square[j] += difference * difference;
      }
    }
    for (int j = 0; j < VECTOR_SIZE; ++j) {
      int at = 2 * s.channels * row + j * vectors + w;
      sums[at] = sum[j];
      squares[at] = square[j];
    }
  }
  block_sum(shared, s);
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    int at = channel_slot(c, s);
    float sum = sums[at];
    sums[at] = load(((const T*)tile)[c]) + sum / n;
    squares[at] -= sum * sum / n;
  }
  __syncthreads();
  int d = s.channels / s.groups, warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int g = warp; warp < warps && g < s.groups; g += warps) {
    float mean = 0, square = 0;
    for (int c = g * d + lane; c < (g + 1) * d; c += WARP) mean += sums[channel_slot(c, s)];
    mean = warp_sum(mean) / d;
    for (int c = g * d + lane; c < (g + 1) * d; c += WARP) {
      float difference = sums[channel_slot(c, s)] - mean;
      square += squares[channel_slot(c, s)] + n * difference * difference;
    }
    square = warp_sum(square);
    float* to = tile_moments + 2 * (((size_t)blockIdx.y * s.tiles + blockIdx.x) * s.groups + g);
    if (lane == 0) to[0] = mean, to[1] = square;
  }
}

// Blocks (group, image) of one warp. Writes mean and reciprocal standard deviation of each group:
// moments [N, G, 2].
extern "C" __global__ void group_norm_group_moments(const float* tile_moments, float* moments, GroupNormShape s) {
  const float* group_moments = tile_moments + 2 * ((size_t)blockIdx.y * s.tiles * s.groups + blockIdx.x);
  float d = s.channels / s.groups, mean = 0, square = 0;
  for (int t = threadIdx.x; t < s.tiles; t += WARP) mean += group_moments[(size_t)2 * t * s.groups] * tile_pixels(s, t);
  mean = warp_sum(mean) / s.pixels;
  for (int t = threadIdx.x; t < s.tiles; t += WARP) {
    float difference = group_moments[(size_t)2 * t * s.groups] - mean;
    square += group_moments[(size_t)2 * t * s.groups + 1] + d * tile_pixels(s, t) * difference * difference;
  }
  square = warp_sum(square);
  float* to = moments + 2 * ((size_t)blockIdx.y * s.groups + blockIdx.x);
  if (threadIdx.x == 0) to[0] = mean, to[1] = rsqrtf(square / (d * s.pixels) + s.eps);
}

// The norm of one channel of an image: with n = (x - mean) rstd, z = weight n + bias = x scale +
// shift.
struct Channel {
  float mean, rstd, scale, shift;
};

__device__ inline Channel make_channel(int c, int group, const void* weights, const void* biases, const float* moments,
                                       GroupNormShape s) {
  const float* group_moments = moments + 2 * (blockIdx.y * s.groups + group);
  float scale = group_moments[1] * load_weight(weights, c, s);
  return {group_moments[0], group_moments[1], scale, load_weight(biases, c, s) - group_moments[0] * scale};
}

// The groups of a thread's channels, one after the other, with one division for all of them.
struct GroupIterator {
  int group, channels_left, group_channels;
  __device__ GroupIterator(int c, GroupNormShape s) : group_channels(s.channels / s.groups) {
    group = c / group_channels, channels_left = group_channels - c % group_channels;
  }
  __device__ int next() {
    int current = group;
    if (--channels_left == 0) ++group, channels_left = group_channels;
    return current;
  }
};

// Blocks (tile, image). Writes the output.
extern "C" __global__ void group_norm_apply(const Vector* __restrict__ x, const void* weights, const void* biases,
                                            const float* moments, Vector* __restrict__ output, GroupNormShape s) {
  const Vector* tile = x + tile_start(s);
  Vector* to = output + tile_start(s);
  int n = tile_pixels(s, blockIdx.x), vectors = s.channels / VECTOR_SIZE, rows = blockDim.x / s.lanes;
  for (int w = threadIdx.x % s.lanes; w < vectors; w += s.lanes) {
    float scale[VECTOR_SIZE], shift[VECTOR_SIZE];
    GroupIterator group(w * VECTOR_SIZE, s);
    for (int j = 0; j < VECTOR_SIZE; ++j) {
      Channel channel = make_channel(w * VECTOR_SIZE + j, group.next(), weights, biases, moments, s);
      scale[j] = channel.scale, shift[j] = channel.shift;
    }
# pragma unroll 4
    for (int p = threadIdx.x / s.lanes; p < n; p += rows) {
      Vector v = tile[p * vectors + w];
      for (int j = 0; j < VECTOR_SIZE; ++j) {
        float z = load(v.at[j]) * scale[j] + shift[j];
        store(v.at + j, s.silu ? z * sigmoid(z) : z);
      }
      to[p * vectors + w] = v;
    }
  }
}

// The gradient of z from that of the output.
__device__ inline float z_gradient(float grad, float z, int silu) {
  if (!silu) return grad;
  float s = sigmoid(z);
  return grad * s * (1.0f + z * (1.0f - s));
}

// Blocks (tile, image). Writes the sums of d n and d over each tile and channel, where d is the
// gradient of z: tile_sums [N, tiles, 2, C].
extern "C" __global__ void group_norm_tile_sums(const Vector* x, const Vector* grad, const void* weights, const void* biases,
                                                const float* moments, float* tile_sums, GroupNormShape s) {
  extern __shared__ float shared[];
  const Vector *tile = x + tile_start(s), *grads = grad + tile_start(s);
  int n = tile_pixels(s, blockIdx.x), vectors = s.channels / VECTOR_SIZE, rows = blockDim.x / s.lanes, row = threadIdx.x / s.lanes;
  for (int w = threadIdx.x % s.lanes; w < vectors; w += s.lanes) {
    Channel channels[VECTOR_SIZE];
    GroupIterator group(w * VECTOR_SIZE, s);
    for (int j = 0; j < VECTOR_SIZE; ++j) {
      channels[j] = make_channel(w * VECTOR_SIZE + j, group.next(), weights, biases, moments, s);
    }
    float sum_dn[VECTOR_SIZE] = {}, sum_d[VECTOR_SIZE] = {};
# pragma unroll 2
    for (int p = row; p < n; p += rows) {
      Vector v = tile[p * vectors + w], g = grads[p * vectors + w];
      for (int j = 0; j < VECTOR_SIZE; ++j) {
        float x = load(v.at[j]), d = z_gradient(load(g.at[j]), x * channels[j].scale + channels[j].shift, s.silu);
        sum_dn[j] += d * (x - channels[j].mean);
        sum_d[j] += d;
      }
    }
    for (int j = 0; j < VECTOR_SIZE; ++j) {
      int at = 2 * s.channels * row + j * vectors + w;
      shared[at] = sum_dn[j] * channels[j].rstd;
      shared[s.channels + at] = sum_d[j];
    }
  }
  block_sum(shared, s);
  float* to = tile_sums + (size_t)2 * s.channels * (blockIdx.y * s.tiles + blockIdx.x);
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    to[c] = shared[channel_slot(c, s)];
    to[s.channels + c] = shared[s.channels + channel_slot(c, s)];
  }
}

// Blocks (group, image). Writes the same sums over each channel, channel_sums [N, 2, C], and the
// means over groups of d n weight and d weight, group_means [N, G, 2].
extern "C" __global__ void group_norm_image_sums(const float* tile_sums, const void* weights, float* channel_sums,
                                                 float* group_means, GroupNormShape s) {
  extern __shared__ float shared[];
  int d = s.channels / s.groups, warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  float *image_sums = channel_sums + (size_t)2 * s.channels * blockIdx.y, weighted[2] = {};
  // A warp takes a channel, and its lanes share the tiles.
  for (int c = blockIdx.x * d + warp; c < (blockIdx.x + 1) * d; c += warps) {
    for (int k = 0; k < 2; ++k) {
      float sum = 0;
      for (int t = lane; t < s.tiles; t += WARP) {
        sum += tile_sums[s.channels * (2 * ((size_t)blockIdx.y * s.tiles + t) + k) + c];
      }
      sum = warp_sum(sum);
      if (lane == 0) image_sums[s.channels * k + c] = sum;
      weighted[k] += sum * load_weight(weights, c, s);
    }
  }
  if (lane == 0) shared[warp] = weighted[0], shared[warps + warp] = weighted[1];
  __syncthreads();
  if (threadIdx.x >= 2) return;
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += shared[warps * threadIdx.x + w];
  group_means[2 * ((size_t)blockIdx.y * s.groups + blockIdx.x) + threadIdx.x] = sum / ((float)d * s.pixels);
}

// Blocks (tile, image). Writes the gradient of x: rstd (d weight - mean(d weight) - n mean(d weight
// n)), plus `residual_grad`, the gradient of x as the residual, which may be null.
extern "C" __global__ void group_norm_x_grad(const Vector* __restrict__ x, const Vector* __restrict__ grad,
                                             const Vector* __restrict__ residual_grad, const void* weights, const void* biases,
                                             const float* moments, const float* group_means, Vector* __restrict__ x_grad,
                                             GroupNormShape s) {
  const Vector *tile = x + tile_start(s), *grads = grad + tile_start(s);
  const Vector* residual_grads = residual_grad ? residual_grad + tile_start(s) : nullptr;
  Vector* to = x_grad + tile_start(s);
  int n = tile_pixels(s, blockIdx.x), vectors = s.channels / VECTOR_SIZE, rows = blockDim.x / s.lanes;
  for (int w = threadIdx.x % s.lanes; w < vectors; w += s.lanes) {
    // The formula in terms of d and x: d scale - x x_factor - offset.
    float scale[VECTOR_SIZE], shift[VECTOR_SIZE], x_factor[VECTOR_SIZE], offset[VECTOR_SIZE];
    GroupIterator group(w * VECTOR_SIZE, s);
    for (int j = 0; j < VECTOR_SIZE; ++j) {
      int g = group.next();
      Channel channel = make_channel(w * VECTOR_SIZE + j, g, weights, biases, moments, s);
      const float* means = group_means + 2 * (blockIdx.y * s.groups + g);
      scale[j] = channel.scale, shift[j] = channel.shift;
      x_factor[j] = channel.rstd * channel.rstd * means[0];
      offset[j] = channel.rstd * means[1] - channel.mean * x_factor[j];
    }
# pragma unroll 2
    for (int p = threadIdx.x / s.lanes; p < n; p += rows) {
      int i = p * vectors + w;
      Vector v = tile[i], g = grads[i], sum = residual_grads ? residual_grads[i] : Vector{};
      for (int j = 0; j < VECTOR_SIZE; ++j) {
        float x = load(v.at[j]), d = z_gradient(load(g.at[j]), x * scale[j] + shift[j], s.silu);
        store(sum.at + j, load(sum.at[j]) + (d * scale[j] - x * x_factor[j] - offset[j]));
      }
      to[i] = sum;
    }
  }
}

// Blocks (some channels). Writes the gradients of weight and bias [C], from the sums of each
// image's channels.
extern "C" __global__ void group_norm_weight_grads(const float* channel_sums, void* weight_grads, void* bias_grads, GroupNormShape s) {
  for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < s.channels; c += gridDim.x * blockDim.x) {
    float sum_dn = 0, sum_d = 0;
    for (int i = 0; i < s.images; ++i) {
      const float* image_sums = channel_sums + (size_t)2 * i * s.channels;
      sum_dn += image_sums[c];
      sum_d += image_sums[s.channels + c];
    }
    if (s.has_bf16_weights) {
      store((bf16*)weight_grads + c, sum_dn);
      store((bf16*)bias_grads + c, sum_d);
    } else {
      ((float*)weight_grads)[c] = sum_dn;
      ((float*)bias_grads)[c] = sum_d;
    }
  }
}
