// Group normalisation, and SiLU or not, of images that lie channels-last. x [N, P, C]: N images of P pixels of C channels, in G
// groups of D channels. A block takes a tile of pixels of an image; a thread takes a Wide of channels, of every so manieth pixel. All sums
// are added up in a fixed order: the same input gives the same output.

struct Shape {
  int images, pixels, channels, groups;
  // Pixels of a tile, tiles of an image, and threads that share a pixel.
  int tile, tiles, lanes;
  // Whether SiLU follows, and whether weight and bias, and their gradients, are bf16; else float.
  int silu, bf16_weights;
  float eps;
};

// Of the blocks (tile, image): where the tile begins in x, and its pixels.
__device__ inline size_t begin_of(Shape s) {
  return ((size_t)blockIdx.y * s.pixels + blockIdx.x * s.tile) * (s.channels / WIDE);
}
__device__ inline int pixels_of(Shape s, int tile) { return min(s.tile, s.pixels - tile * s.tile); }

// Where the numbers of a channel are among those of all: lanes of a warp, which have every WIDE-th of them, meet in no bank.
__device__ inline int place_of(int c, Shape s) { return c % WIDE * (s.channels / WIDE) + c / WIDE; }

// Adds up what the threads of each pixel have left for each channel, two numbers [pixels at a time, 2, C]: [2, C].
__device__ inline void sum_of_block(float* shared, Shape s) {
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * s.channels; i += blockDim.x) {
    for (int row = 1; row < blockDim.x / s.lanes; ++row) shared[i] += shared[2 * s.channels * row + i];
  }
  __syncthreads();
}

__device__ inline float weight_of(const void* weights, int c, Shape s) {
  return s.bf16_weights ? get(((const bf16*)weights)[c]) : ((const float*)weights)[c];
}

__device__ inline float sigmoid(float z) { return __fdividef(1.0f, 1.0f + (sizeof(T) == 2 ? __expf(-z) : expf(-z))); }

// Blocks (tile, image). Mean and sum of squared differences of each group of each tile: [N, tiles, G, 2].
extern "C" __global__ void moments_of_tiles(const Wide* x, float* found, Shape s) {
  extern __shared__ float shared[];
  const Wide* tile = x + begin_of(s);
  int n = pixels_of(s, blockIdx.x), wides = s.channels / WIDE, rows = blockDim.x / s.lanes, row = threadIdx.x / s.lanes;
  float *sums = shared, *squares = shared + s.channels;
  for (int w = threadIdx.x % s.lanes; w < wides; w += s.lanes) {
    // Relative to one of them, so that little is lost where the mean is far from zero.
    Wide first = tile[w];
    float sum[WIDE] = {}, square[WIDE] = {};
#pragma unroll 4
    for (int p = row; p < n; p += rows) {
      Wide v = tile[p * wides + w];
      for (int j = 0; j < WIDE; ++j) {
        float difference = get(v.of[j]) - get(first.of[j]);
        sum[j] += difference;
        square[j] += difference * difference;
      }
    }
    for (int j = 0; j < WIDE; ++j) {
      int at = 2 * s.channels * row + j * wides + w;
      sums[at] = sum[j];
      squares[at] = square[j];
    }
  }
  sum_of_block(shared, s);
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    int at = place_of(c, s);
    float sum = sums[at];
    sums[at] = get(((const T*)tile)[c]) + sum / n;
    squares[at] -= sum * sum / n;
  }
  __syncthreads();
  int d = s.channels / s.groups, warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int g = warp; warp < warps && g < s.groups; g += warps) {
    float mean = 0, square = 0;
    for (int c = g * d + lane; c < (g + 1) * d; c += WARP) mean += sums[place_of(c, s)];
    mean = sum_of_warp(mean) / d;
    for (int c = g * d + lane; c < (g + 1) * d; c += WARP) {
      float difference = sums[place_of(c, s)] - mean;
      square += squares[place_of(c, s)] + n * difference * difference;
    }
    square = sum_of_warp(square);
    float* to = found + 2 * (((size_t)blockIdx.y * s.tiles + blockIdx.x) * s.groups + g);
    if (lane == 0) to[0] = mean, to[1] = square;
  }
}

// Blocks (group, image) of a warp. Mean and reciprocal standard deviation of each group: [N, G, 2].
extern "C" __global__ void moments_of_groups(const float* tiles, float* moments, Shape s) {
  const float* of_tiles = tiles + 2 * ((size_t)blockIdx.y * s.tiles * s.groups + blockIdx.x);
  float d = s.channels / s.groups, mean = 0, square = 0;
  for (int t = threadIdx.x; t < s.tiles; t += WARP) mean += of_tiles[(size_t)2 * t * s.groups] * pixels_of(s, t);
  mean = sum_of_warp(mean) / s.pixels;
  for (int t = threadIdx.x; t < s.tiles; t += WARP) {
    float difference = of_tiles[(size_t)2 * t * s.groups] - mean;
    square += of_tiles[(size_t)2 * t * s.groups + 1] + d * pixels_of(s, t) * difference * difference;
  }
  square = sum_of_warp(square);
  float* to = moments + 2 * ((size_t)blockIdx.y * s.groups + blockIdx.x);
  if (threadIdx.x == 0) to[0] = mean, to[1] = rsqrtf(square / (d * s.pixels) + s.eps);
}

// What is the same for a channel of an image: with n = (x - mean) rstd and z = weight n + bias, z is x scale + shift.
struct Channel {
  float mean, rstd, scale, shift;
};

__device__ inline Channel channel_of(int c, int group, const void* weights, const void* biases, const float* moments, Shape s) {
  const float* of_group = moments + 2 * (blockIdx.y * s.groups + group);
  float scale = of_group[1] * weight_of(weights, c, s);
  return {of_group[0], of_group[1], scale, weight_of(biases, c, s) - of_group[0] * scale};
}

// The groups of a thread's channels, one after the other: a division for all of them.
struct GroupOf {
  int group, left, all;
  __device__ GroupOf(int c, Shape s) : all(s.channels / s.groups) { group = c / all, left = all - c % all; }
  __device__ int next() {
    int found = group;
    if (--left == 0) ++group, left = all;
    return found;
  }
};

// Blocks (tile, image).
extern "C" __global__ void apply(const Wide* __restrict__ x, const void* weights, const void* biases, const float* moments,
                                 Wide* __restrict__ output, Shape s) {
  const Wide* tile = x + begin_of(s);
  Wide* to = output + begin_of(s);
  int n = pixels_of(s, blockIdx.x), wides = s.channels / WIDE, rows = blockDim.x / s.lanes;
  for (int w = threadIdx.x % s.lanes; w < wides; w += s.lanes) {
    float scale[WIDE], shift[WIDE];
    GroupOf group(w * WIDE, s);
    for (int j = 0; j < WIDE; ++j) {
      Channel channel = channel_of(w * WIDE + j, group.next(), weights, biases, moments, s);
      scale[j] = channel.scale, shift[j] = channel.shift;
    }
#pragma unroll 4
    for (int p = threadIdx.x / s.lanes; p < n; p += rows) {
      Wide v = tile[p * wides + w];
      for (int j = 0; j < WIDE; ++j) {
        float z = get(v.of[j]) * scale[j] + shift[j];
        put(v.of + j, s.silu ? z * sigmoid(z) : z);
      }
      to[p * wides + w] = v;
    }
  }
}

// The gradient of z.
__device__ inline float slope(float grad, float z, int silu) {
  if (!silu) return grad;
  float s = sigmoid(z);
  return grad * s * (1.0f + z * (1.0f - s));
}

// Blocks (tile, image). Of each tile and channel the sums of d n and d, where d is the gradient of z: [N, tiles, 2, C].
extern "C" __global__ void sums_of_tiles(const Wide* x, const Wide* grad, const void* weights, const void* biases, const float* moments,
                                         float* found, Shape s) {
  extern __shared__ float shared[];
  const Wide *tile = x + begin_of(s), *grads = grad + begin_of(s);
  int n = pixels_of(s, blockIdx.x), wides = s.channels / WIDE, rows = blockDim.x / s.lanes, row = threadIdx.x / s.lanes;
  for (int w = threadIdx.x % s.lanes; w < wides; w += s.lanes) {
    Channel channels[WIDE];
    GroupOf group(w * WIDE, s);
    for (int j = 0; j < WIDE; ++j) channels[j] = channel_of(w * WIDE + j, group.next(), weights, biases, moments, s);
    float along[WIDE] = {}, across[WIDE] = {};
#pragma unroll 2
    for (int p = row; p < n; p += rows) {
      Wide v = tile[p * wides + w], g = grads[p * wides + w];
      for (int j = 0; j < WIDE; ++j) {
        float x = get(v.of[j]), d = slope(get(g.of[j]), x * channels[j].scale + channels[j].shift, s.silu);
        along[j] += d * (x - channels[j].mean);
        across[j] += d;
      }
    }
    for (int j = 0; j < WIDE; ++j) {
      int at = 2 * s.channels * row + j * wides + w;
      shared[at] = along[j] * channels[j].rstd;
      shared[s.channels + at] = across[j];
    }
  }
  sum_of_block(shared, s);
  float* to = found + (size_t)2 * s.channels * (blockIdx.y * s.tiles + blockIdx.x);
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    to[c] = shared[place_of(c, s)];
    to[s.channels + c] = shared[s.channels + place_of(c, s)];
  }
}

// Blocks (group, image). The same of each channel: [N, 2, C]; and the means over groups, of these times weight: [N, G, 2].
extern "C" __global__ void sums_of_images(const float* tiles, const void* weights, float* channels, float* groups, Shape s) {
  extern __shared__ float shared[];
  int d = s.channels / s.groups, warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  float *of_image = channels + (size_t)2 * s.channels * blockIdx.y, of_warp[2] = {};
  // A warp takes a channel, and lanes its tiles.
  for (int c = blockIdx.x * d + warp; c < (blockIdx.x + 1) * d; c += warps) {
    for (int k = 0; k < 2; ++k) {
      float sum = 0;
      for (int t = lane; t < s.tiles; t += WARP) sum += tiles[s.channels * (2 * ((size_t)blockIdx.y * s.tiles + t) + k) + c];
      sum = sum_of_warp(sum);
      if (lane == 0) of_image[s.channels * k + c] = sum;
      of_warp[k] += sum * weight_of(weights, c, s);
    }
  }
  if (lane == 0) shared[warp] = of_warp[0], shared[warps + warp] = of_warp[1];
  __syncthreads();
  if (threadIdx.x >= 2) return;
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += shared[warps * threadIdx.x + w];
  groups[2 * ((size_t)blockIdx.y * s.groups + blockIdx.x) + threadIdx.x] = sum / ((float)d * s.pixels);
}

// Blocks (tile, image). The gradient of x: rstd (d weight - mean(d weight) - n mean(d weight n)), and `straight`, if that is not null, which
// comes to x past the norm.
extern "C" __global__ void gradient(const Wide* __restrict__ x, const Wide* __restrict__ grad, const Wide* __restrict__ straight,
                                    const void* weights, const void* biases, const float* moments, const float* groups,
                                    Wide* __restrict__ to_x, Shape s) {
  const Wide *tile = x + begin_of(s), *grads = grad + begin_of(s), *more = straight ? straight + begin_of(s) : nullptr;
  Wide* to = to_x + begin_of(s);
  int n = pixels_of(s, blockIdx.x), wides = s.channels / WIDE, rows = blockDim.x / s.lanes;
  for (int w = threadIdx.x % s.lanes; w < wides; w += s.lanes) {
    // It is d scale - x slant - level.
    float scale[WIDE], shift[WIDE], slant[WIDE], level[WIDE];
    GroupOf group(w * WIDE, s);
    for (int j = 0; j < WIDE; ++j) {
      int g = group.next();
      Channel channel = channel_of(w * WIDE + j, g, weights, biases, moments, s);
      const float* of_group = groups + 2 * (blockIdx.y * s.groups + g);
      scale[j] = channel.scale, shift[j] = channel.shift;
      slant[j] = channel.rstd * channel.rstd * of_group[0];
      level[j] = channel.rstd * of_group[1] - channel.mean * slant[j];
    }
#pragma unroll 2
    for (int p = threadIdx.x / s.lanes; p < n; p += rows) {
      int i = p * wides + w;
      Wide v = tile[i], g = grads[i], found = more ? more[i] : Wide{};
      for (int j = 0; j < WIDE; ++j) {
        float x = get(v.of[j]), d = slope(get(g.of[j]), x * scale[j] + shift[j], s.silu);
        put(found.of + j, get(found.of[j]) + (d * scale[j] - x * slant[j] - level[j]));
      }
      to[i] = found;
    }
  }
}

// Blocks (some channels). The gradients of weight and bias [C], from the sums of each image's channels.
extern "C" __global__ void sums_of_all(const float* channels, void* to_weights, void* to_biases, Shape s) {
  for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < s.channels; c += gridDim.x * blockDim.x) {
    float along = 0, across = 0;
    for (int i = 0; i < s.images; ++i) {
      const float* of_image = channels + (size_t)2 * i * s.channels;
      along += of_image[c];
      across += of_image[s.channels + c];
    }
    if (s.bf16_weights) {
      put((bf16*)to_weights + c, along);
      put((bf16*)to_biases + c, across);
    } else {
      ((float*)to_weights)[c] = along;
      ((float*)to_biases)[c] = across;
    }
  }
}
