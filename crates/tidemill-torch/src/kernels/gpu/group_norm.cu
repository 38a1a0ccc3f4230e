// Group normalisation, and SiLU or not, of images that lie channels-last. x [N, P, C]: N images of P pixels of C channels, in G
// groups of D channels. A block takes a tile of pixels of an image, so that threads side
// by side read channels side by side. All sums are added up in a fixed order: the same input gives the same output.

// Pixels of a tile.
#define TILE 32

struct Shape {
  int images, pixels, channels, groups, tiles;
  // Whether SiLU follows, and whether weight and bias, and their gradients, are bf16; else float.
  int silu, bf16_weights;
  float eps;
};

// Of the blocks (tile, image): where the tile begins in x, and its pixels.
__device__ inline size_t begin_of(Shape s) {
  return ((size_t)blockIdx.y * s.pixels + blockIdx.x * TILE) * s.channels;
}
__device__ inline int pixels_of(Shape s, int tile) { return min(TILE, s.pixels - tile * TILE); }

__device__ inline float weight_of(const void* weights, int c, Shape s) {
  return s.bf16_weights ? get(((const bf16*)weights)[c]) : ((const float*)weights)[c];
}

__device__ inline float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

// Blocks (tile, image). Mean and sum of squared differences of each group of each tile: [N, tiles, G, 2].
extern "C" __global__ void moments_of_tiles(const T* x, float* found, Shape s) {
  extern __shared__ float shared[];
  float *means = shared, *squares = shared + s.channels;
  const T* tile = x + begin_of(s);
  int n = pixels_of(s, blockIdx.x);
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    // Relative to one of them, so that little is lost where the mean is far from zero.
    float first = get(tile[c]), sum = 0, square = 0;
    for (int p = 0; p < n; ++p) {
      float x = get(tile[(size_t)p * s.channels + c]) - first;
      sum += x;
      square += x * x;
    }
    means[c] = first + sum / n;
    squares[c] = square - sum * sum / n;
  }
  __syncthreads();
  int d = s.channels / s.groups;
  for (int g = threadIdx.x; g < s.groups; g += blockDim.x) {
    float mean = 0, square = 0;
    for (int c = g * d; c < (g + 1) * d; ++c) mean += means[c] / d;
    for (int c = g * d; c < (g + 1) * d; ++c) square += squares[c] + n * (means[c] - mean) * (means[c] - mean);
    float* to = found + 2 * (((size_t)blockIdx.y * s.tiles + blockIdx.x) * s.groups + g);
    to[0] = mean;
    to[1] = square;
  }
}

// Blocks (image). Mean and reciprocal standard deviation of each group: [N, G, 2].
extern "C" __global__ void moments_of_groups(const float* tiles, float* moments, Shape s) {
  float d = s.channels / s.groups;
  for (int g = threadIdx.x; g < s.groups; g += blockDim.x) {
    const float* of_tiles = tiles + 2 * ((size_t)blockIdx.x * s.tiles * s.groups + g);
    float mean = 0, square = 0;
    for (int t = 0; t < s.tiles; ++t) mean += of_tiles[(size_t)2 * t * s.groups] * pixels_of(s, t) / s.pixels;
    for (int t = 0; t < s.tiles; ++t) {
      float difference = of_tiles[(size_t)2 * t * s.groups] - mean;
      square += of_tiles[(size_t)2 * t * s.groups + 1] + d * pixels_of(s, t) * difference * difference;
    }
    float* to = moments + 2 * ((size_t)blockIdx.x * s.groups + g);
    to[0] = mean;
    to[1] = rsqrtf(square / (d * s.pixels) + s.eps);
  }
}

// Blocks (tile, image).
extern "C" __global__ void apply(const T* x, const void* weights, const void* biases, const float* moments, T* output, Shape s) {
  const T* tile = x + begin_of(s);
  T* to = output + begin_of(s);
  int n = pixels_of(s, blockIdx.x), d = s.channels / s.groups;
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    const float* of_group = moments + 2 * ((size_t)blockIdx.y * s.groups + c / d);
    float scale = of_group[1] * weight_of(weights, c, s), shift = weight_of(biases, c, s) - of_group[0] * scale;
    for (int p = 0; p < n; ++p) {
      float z = get(tile[(size_t)p * s.channels + c]) * scale + shift;
      put(to + (size_t)p * s.channels + c, s.silu ? z * sigmoid(z) : z);
    }
  }
}

// With n = (x - mean) rstd and z = weight n + bias: the gradient of z.
__device__ inline float slope(float grad, float n, float weight, float bias, int silu) {
  if (!silu) return grad;
  float z = weight * n + bias, s = sigmoid(z);
  return grad * s * (1.0f + z * (1.0f - s));
}

// Blocks (tile, image). Of each tile and channel the sums of d n and d, where d is the gradient of z: [N, tiles, C, 2].
extern "C" __global__ void sums_of_tiles(const T* x, const T* grad, const void* weights, const void* biases, const float* moments,
                                         float* found, Shape s) {
  const T *tile = x + begin_of(s), *grads = grad + begin_of(s);
  int pixels = pixels_of(s, blockIdx.x), group = s.channels / s.groups;
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    const float* of_group = moments + 2 * ((size_t)blockIdx.y * s.groups + c / group);
    float weight = weight_of(weights, c, s), bias = weight_of(biases, c, s), along = 0, across = 0;
    for (int p = 0; p < pixels; ++p) {
      size_t i = (size_t)p * s.channels + c;
      float n = (get(tile[i]) - of_group[0]) * of_group[1];
      float d = slope(get(grads[i]), n, weight, bias, s.silu);
      along += d * n;
      across += d;
    }
    float* to = found + 2 * (((size_t)blockIdx.y * s.tiles + blockIdx.x) * s.channels + c);
    to[0] = along;
    to[1] = across;
  }
}

// Blocks (image). The same of each channel: [N, C, 2]; and the means over groups, of these times weight: [N, G, 2].
extern "C" __global__ void sums_of_images(const float* tiles, const void* weights, float* channels, float* groups, Shape s) {
  float* of_image = channels + (size_t)2 * blockIdx.x * s.channels;
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    float along = 0, across = 0;
    for (int t = 0; t < s.tiles; ++t) {
      const float* of_tile = tiles + 2 * (((size_t)blockIdx.x * s.tiles + t) * s.channels + c);
      along += of_tile[0];
      across += of_tile[1];
    }
    of_image[2 * c] = along;
    of_image[2 * c + 1] = across;
  }
  __syncthreads();
  int d = s.channels / s.groups;
  for (int g = threadIdx.x; g < s.groups; g += blockDim.x) {
    float along = 0, across = 0;
    for (int c = g * d; c < (g + 1) * d; ++c) {
      float weight = weight_of(weights, c, s);
      along += of_image[2 * c] * weight;
      across += of_image[2 * c + 1] * weight;
    }
    float* to = groups + 2 * ((size_t)blockIdx.x * s.groups + g);
    to[0] = along / ((float)d * s.pixels);
    to[1] = across / ((float)d * s.pixels);
  }
}

// Blocks (tile, image). The gradient of x.
extern "C" __global__ void gradient(const T* x, const T* grad, const void* weights, const void* biases, const float* moments,
                                    const float* groups, T* to_x, Shape s) {
  const T *tile = x + begin_of(s), *grads = grad + begin_of(s);
  T* to = to_x + begin_of(s);
  int pixels = pixels_of(s, blockIdx.x), group = s.channels / s.groups;
  for (int c = threadIdx.x; c < s.channels; c += blockDim.x) {
    size_t g = (size_t)blockIdx.y * s.groups + c / group;
    float mean = moments[2 * g], rstd = moments[2 * g + 1];
    float weight = weight_of(weights, c, s), bias = weight_of(biases, c, s);
    for (int p = 0; p < pixels; ++p) {
      size_t i = (size_t)p * s.channels + c;
      float n = (get(tile[i]) - mean) * rstd;
      float d = slope(get(grads[i]), n, weight, bias, s.silu);
      put(to + i, rstd * (d * weight - groups[2 * g + 1] - n * groups[2 * g]));
    }
  }
}

// Blocks (some channels). The gradients of weight and bias [C], from the sums of each image's channels.
extern "C" __global__ void sums_of_all(const float* channels, void* to_weights, void* to_biases, Shape s) {
  for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < s.channels; c += gridDim.x * blockDim.x) {
    float along = 0, across = 0;
    for (int i = 0; i < s.images; ++i) {
      const float* of_image = channels + 2 * ((size_t)i * s.channels + c);
      along += of_image[0];
      across += of_image[1];
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
