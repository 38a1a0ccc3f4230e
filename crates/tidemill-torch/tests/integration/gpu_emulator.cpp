// Runs kernels for GPUs on a CPU, with one thread for each thread of a block. The first argument
// names the operation. Tensors are read from standard input and written to standard output, as
// float.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

struct Index { unsigned x = 0, y = 0; };
static thread_local Index threadIdx;
static Index blockIdx, blockDim, gridDim;
static std::barrier<>* block_barrier;
static float shared[1 << 16];

#define __device__
#define __global__
#define __shared__
#define __syncthreads() block_barrier->arrive_and_wait()
using std::min;

static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }

#define __expf(x) std::exp(x)
#define __restrict__
static float __fdividef(float x, float y) { return x / y; }

// Two warps: so few threads that some take more than one channel.
constexpr unsigned THREADS = 8, MAX_THREADS = 64;
#define WARP 4
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static float __shfl_xor_sync(unsigned, float value, unsigned distance) {
  static float values[MAX_THREADS];
  auto& barrier = *warp_barriers[threadIdx.x / WARP];
  values[threadIdx.x] = value;
  barrier.arrive_and_wait();
  float other = values[threadIdx.x ^ distance];
  barrier.arrive_and_wait();
  return other;
}

#include "../../src/kernels/gpu/common.cu"
#include "../../src/kernels/gpu/column_sums.cu"
#include "../../src/kernels/gpu/adamw.cu"
#include "../../src/kernels/gpu/geglu.cu"
#include "../../src/kernels/gpu/group_norm.cu"
#include "../../src/kernels/gpu/layer_norm.cu"
#include "../../src/kernels/gpu/channel_bias.cu"

static void launch(unsigned grid_x, unsigned grid_y, const std::function<void()>& kernel, unsigned thread_count = THREADS) {
  blockDim = {thread_count};
  gridDim = {grid_x, grid_y};
  for (blockIdx.y = 0; blockIdx.y < grid_y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid_x; ++blockIdx.x) {
      std::barrier<> barrier(thread_count);
      block_barrier = &barrier;
      warp_barriers.clear();
      for (unsigned i = 0; i < thread_count; i += WARP) warp_barriers.push_back(std::make_unique<std::barrier<>>(WARP));
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < thread_count; ++i) threads.emplace_back([&kernel, i] { threadIdx = {i}; kernel(); });
    }
  }
}

static std::vector<float> read_floats(size_t n) {
  std::vector<float> values(n);
  if (fread(values.data(), 4, n, stdin) != n) exit(2);
  return values;
}

template <typename E = T>
static std::vector<E> to_elements(const std::vector<float>& values) {
  std::vector<E> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) store(&result[i], values[i]);
  return result;
}

template <typename E>
static void write(const std::vector<E>& values) {
  for (E value : values) {
    float number = load(value);
    fwrite(&number, 4, 1, stdout);
  }
}

// Input: N, P, C, G, whether SiLU follows, whether weights are bf16, and whether there is a
// residual; then x, the gradients of output and residual [N, P, C], weight and bias [C]. Output:
// the output, and the gradients of x, weight and bias.
static void run_group_norm() {
  auto sizes = read_floats(7);
  int n = sizes[0], pixels = sizes[1], channels = sizes[2], groups = sizes[3], silu = sizes[4], has_bf16_weights = sizes[5];
  // Some threads take more than one round of channels; two or more pixels at a time; the last warp
  // is not full.
  int tile = 16, vectors = channels / VECTOR_SIZE, lanes = (vectors + 1) / 2, rows = 2 + WARP / lanes;
  GroupNormShape s{n, pixels, channels, groups, tile, (pixels + tile - 1) / tile, lanes, silu, has_bf16_weights, 1e-5f};
  size_t count = size_t(n) * pixels * channels;
  auto x = to_elements(read_floats(count)), grad = to_elements(read_floats(count)), residual_grad = to_elements(read_floats(count));
  auto weight = read_floats(channels), bias = read_floats(channels);
  std::vector<T> output(count), x_grad(count);
  std::vector<float> tile_data(size_t(2) * n * s.tiles * channels), moments(2 * n * groups);
  std::vector<float> channel_sums(2 * n * channels), group_means(2 * n * groups);
  // The same values in bf16, for the kernels that take weights in either dtype.
  std::vector<bf16> weight16(channels), bias16(channels), weight_grad16(channels), bias_grad16(channels);
  for (int c = 0; c < channels; ++c) store(&weight16[c], weight[c]), store(&bias16[c], bias[c]);
  std::vector<float> weight_grad(channels), bias_grad(channels);
  auto either = [&](auto& floats, auto& halves) { return has_bf16_weights ? (void*)halves.data() : (void*)floats.data(); };
  void *w = either(weight, weight16), *b = either(bias, bias16);
  void *weight_grad_data = either(weight_grad, weight_grad16), *bias_grad_data = either(bias_grad, bias_grad16);
  float *t = tile_data.data(), *m = moments.data(), *g = group_means.data();
  unsigned threads = lanes * rows;
  auto in = [](auto& tensor) { return (Vector*)tensor.data(); };
  launch(s.tiles, n, [&] { group_norm_tile_moments(in(x), t, s); }, threads);
  launch(groups, n, [&] { group_norm_group_moments(t, m, s); }, WARP);
  launch(s.tiles, n, [&] { group_norm_apply(in(x), w, b, m, in(output), s); }, threads);
  launch(s.tiles, n, [&] { group_norm_tile_sums(in(x), in(grad), w, b, m, t, s); }, threads);
  launch(groups, n, [&] { group_norm_image_sums(t, w, channel_sums.data(), g, s); });
  launch(2, 1, [&] { group_norm_weight_grads(channel_sums.data(), weight_grad_data, bias_grad_data, s); });
  Vector* residual = sizes[6] ? in(residual_grad) : nullptr;
  launch(s.tiles, n, [&] { group_norm_x_grad(in(x), in(grad), residual, w, b, m, g, in(x_grad), s); }, threads);
  write(output);
  write(x_grad);
  has_bf16_weights ? (write(weight_grad16), write(bias_grad16)) : (write(weight_grad), write(bias_grad));
}

// Input: N, P, C, whether there is a b, and whether each image has a bias of its own; then a, b and
// the biases. Output: the sum.
static void run_add_channel_bias() {
  auto sizes = read_floats(5);
  size_t n = sizes[0], pixels = sizes[1], channels = sizes[2], count = n * pixels * channels;
  bool has_b = sizes[3], per_image = sizes[4];
  ImageSizes s{unsigned(channels / VECTOR_SIZE), unsigned(per_image ? pixels : n * pixels), unsigned(count / VECTOR_SIZE)};
  auto a = to_elements(read_floats(count)), b = to_elements(read_floats(count)), bias = to_elements(read_floats(per_image ? n * channels : channels));
  std::vector<T> output(count);
  auto in = [](auto& tensor) { return (Vector*)tensor.data(); };
  launch(3, 1, [&] { add_channel_bias(in(a), has_b ? in(b) : nullptr, in(bias), in(output), s); });
  write(output);
}

// Input: rows, W, and the number of blocks that share the gradient of the bias (0: no bias); then x
// [rows, 2 W], the gradient of the output [rows, W] and the bias. Output: the output and the
// gradients of x and bias.
static void run_geglu() {
  auto sizes = read_floats(3);
  size_t rows = sizes[0], width = sizes[1];
  unsigned parts = sizes[2];
  GegluSizes s{unsigned(width / VECTOR_SIZE), unsigned(rows * width / VECTOR_SIZE)};
  auto x = to_elements(read_floats(2 * rows * width)), grad = to_elements(read_floats(rows * width)), bias = to_elements(read_floats(2 * width));
  std::vector<T> output(rows * width), x_grad(2 * rows * width), bias_grad(2 * width);
  std::vector<float> partial_sums(2 * width * parts);
  auto in = [](auto& tensor) { return (Vector*)tensor.data(); };
  // Fewer threads than elements, so that each takes several.
  launch(3, 1, [&] { geglu_forward(in(x), parts ? in(bias) : nullptr, in(output), s); });
  if (!parts) {
    launch(3, 1, [&] { geglu_backward(in(x), in(grad), in(x_grad), s); });
  } else {
    launch((s.width + WARP - 1) / WARP, parts, [&] { geglu_backward_with_bias(in(x), in(bias), in(grad), in(x_grad), partial_sums.data(), s); });
    launch((2 * width + WARP - 1) / WARP, 1, [&] {
      sum_columns(partial_sums.data(), bias_grad.data(), bias_grad.data() + width, parts, width, sizeof(T) == 2);
    });
  }
  write(output), write(x_grad), write(bias_grad);
}

// Input: rows, W, whether weights are bf16, whether there is an added tensor, and the blocks of the
// backward pass; then x, the added tensor, the gradients of sum and output, weight and bias.
// Output: sum, output, and the gradients of x, weight and bias.
static void run_add_layer_norm() {
  auto sizes = read_floats(5);
  size_t rows = sizes[0];
  int width = sizes[1], has_bf16_weights = sizes[2];
  unsigned parts = sizes[4];
  LayerNormRows r{rows, width, has_bf16_weights, 1e-5f};
  auto x = to_elements(read_floats(rows * width)), added = to_elements(read_floats(rows * width)), sum_grad = to_elements(read_floats(rows * width)),
       grad = to_elements(read_floats(rows * width));
  auto weights = read_floats(width), biases = read_floats(width);
  auto weights_bf16 = to_elements<bf16>(weights), biases_bf16 = to_elements<bf16>(biases);
  const void *weight = has_bf16_weights ? (void*)weights_bf16.data() : weights.data();
  const void *bias = has_bf16_weights ? (void*)biases_bf16.data() : biases.data();
  std::vector<T> sum(x), output(x.size()), x_grad(x.size());
  std::vector<float> moments(2 * rows), partial_sums(2 * width * parts), weight_grads(width), bias_grads(width);
  std::vector<bf16> weight_grads_bf16(width), bias_grads_bf16(width);
  bool has_added = sizes[3];
  launch((rows + 1) / 2, 1, [&] {
    add_layer_norm_forward(x.data(), has_added ? added.data() : nullptr, weight, bias, sum.data(), output.data(), moments.data(), r);
  });
  launch(parts, 1, [&] {
    add_layer_norm_backward(sum.data(), sum_grad.data(), grad.data(), weight, moments.data(), x_grad.data(), partial_sums.data(), r);
  });
  launch((2 * width + WARP - 1) / WARP, 1, [&] {
    has_bf16_weights ? sum_columns(partial_sums.data(), weight_grads_bf16.data(), bias_grads_bf16.data(), parts, width, true)
                 : sum_columns(partial_sums.data(), weight_grads.data(), bias_grads.data(), parts, width, false);
  });
  write(sum), write(output), write(x_grad);
  has_bf16_weights ? (write(weight_grads_bf16), write(bias_grads_bf16)) : (write(weight_grads), write(bias_grads));
}

// Input: learning rate, step, gradient divisor, skip, AdamW's betas, eps and weight decay, the EMA
// rate, the lengths of two slices, and whether moments are bf16; then of each slice gradient,
// master weights, both moments and averages. Output: of each slice master weights, moments,
// averages and working weights.
static void run_adamw() {
  auto numbers = read_floats(12);
  float *scalars = numbers.data();
  AdamWArguments s{scalars, scalars + 1, scalars + 2, scalars + 3, scalars + 8, scalars[4], scalars[5], scalars[6], scalars[7], scalars[11] != 0};
  std::vector<std::vector<float>> state;
  std::vector<std::vector<bf16>> rounded;
  std::vector<std::vector<T>> tensors;
  ParamSlices slices{};
  unsigned blocks = 0;
  state.reserve(8), tensors.reserve(4), rounded.reserve(4);
  for (unsigned length : {unsigned(scalars[9]), unsigned(scalars[10])}) {
    tensors.push_back(to_elements(read_floats(length)));
    const T* grad = tensors.back().data();
    for (int i = 0; i < 4; ++i) state.push_back(read_floats(length));
    float *master = state.end()[-4].data(), *ema = state.end()[-1].data();
    void *m = state.end()[-3].data(), *v = state.end()[-2].data();
    if (s.has_bf16_moments) {
      for (int i : {-3, -2}) rounded.push_back(to_elements<bf16>(state.end()[i]));
      m = rounded.end()[-2].data(), v = rounded.end()[-1].data();
    }
    tensors.push_back(std::vector<T>(length));
    slices.at[slices.count++] = {grad, master, m, v, ema, tensors.back().data(), length, blocks};
    blocks += (length + CHUNK - 1) / CHUNK;
  }
  slices.has_bf16_weights = sizeof(T) == 2;
  float coefficients[3];
  launch(1, 1, [&] { if (threadIdx.x == 0) adamw_coefficients(s, coefficients); });
  launch(blocks, 1, [&] { adamw_step(slices, s, coefficients); });
  for (int i = 0; i < slices.count; ++i) {
    for (int j = 0; j < 4; ++j) {
      bool is_rounded = s.has_bf16_moments && (j == 1 || j == 2);
      is_rounded ? write(rounded[2 * i + j - 1]) : write(state[4 * i + j]);
    }
    write(tensors[2 * i + 1]);
  }
}

int main(int, char** arguments) {
  std::string operation = arguments[1];
  if (operation == "adamw") run_adamw();
  if (operation == "geglu") run_geglu();
  if (operation == "add_channel_bias") run_add_channel_bias();
  if (operation == "add_layer_norm") run_add_layer_norm();
  if (operation == "group_norm") run_group_norm();
}
