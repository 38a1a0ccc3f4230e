// Runs the kernels for GPUs on a CPU, thread for thread: the one that the first argument names. Reads tensors from standard input, as
// float, and writes what it finds, as float.

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

struct Place { unsigned x = 0, y = 0; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
static std::barrier<>* all;
static float shared[1 << 16];

#define __device__
#define __global__
#define __shared__
#define __syncthreads() all->arrive_and_wait()
using std::min;

static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }

#define __expf(x) std::exp(x)
#define __restrict__
static float __fdividef(float x, float y) { return x / y; }

// More than one channel for some of them, and two warps.
constexpr unsigned THREADS = 8, MOST = 64;
#define WARP 4
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static float __shfl_xor_sync(unsigned, float value, unsigned apart) {
  static float values[MOST];
  auto& warp = *warps[threadIdx.x / WARP];
  values[threadIdx.x] = value;
  warp.arrive_and_wait();
  float other = values[threadIdx.x ^ apart];
  warp.arrive_and_wait();
  return other;
}

#include "../../src/kernels/gpu/element.cu"
#include "../../src/kernels/gpu/sums.cu"
#include "../../src/kernels/gpu/adamw.cu"
#include "../../src/kernels/gpu/geglu.cu"
#include "../../src/kernels/gpu/group_norm.cu"
#include "../../src/kernels/gpu/layer_norm.cu"
#include "../../src/kernels/gpu/shifted.cu"

static void launch(unsigned x, unsigned y, const std::function<void()>& kernel, unsigned n = THREADS) {
  blockDim = {n};
  gridDim = {x, y};
  for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) {
      std::barrier<> barrier(n);
      all = &barrier;
      warps.clear();
      for (unsigned i = 0; i < n; i += WARP) warps.push_back(std::make_unique<std::barrier<>>(WARP));
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < n; ++i) threads.emplace_back([&kernel, i] { threadIdx = {i}; kernel(); });
    }
  }
}

static std::vector<float> read(size_t n) {
  std::vector<float> values(n);
  if (fread(values.data(), 4, n, stdin) != n) exit(2);
  return values;
}

template <typename E = T>
static std::vector<E> elements(const std::vector<float>& values) {
  std::vector<E> found(values.size());
  for (size_t i = 0; i < values.size(); ++i) put(&found[i], values[i]);
  return found;
}

template <typename E>
static void write(const std::vector<E>& values) {
  for (E value : values) {
    float number = get(value);
    fwrite(&number, 4, 1, stdout);
  }
}

// N, P, C, G, whether SiLU follows, whether weights are bf16, and whether x goes past the norm, too; then x, the gradients of the output and of
// what went past [N, P, C], weight and bias [C]. Gives the output, the gradient of x, and those of weight and bias.
static void group_norm() {
  auto sizes = read(7);
  int n = sizes[0], pixels = sizes[1], channels = sizes[2], groups = sizes[3], silu = sizes[4], bf16_weights = sizes[5];
  // More than one round of channels for some threads, two pixels at a time, and a warp that is not whole.
  int tile = 16, wides = channels / WIDE, lanes = (wides + 1) / 2, rows = 2 + WARP / lanes;
  Shape s{n, pixels, channels, groups, tile, (pixels + tile - 1) / tile, lanes, silu, bf16_weights, 1e-5f};
  size_t count = size_t(n) * pixels * channels;
  auto x = elements(read(count)), grad = elements(read(count)), past = elements(read(count));
  auto weight = read(channels), bias = read(channels);
  std::vector<T> output(count), to_x(count);
  std::vector<float> of_tiles(size_t(2) * n * s.tiles * channels), moments(2 * n * groups);
  std::vector<float> of_channels(2 * n * channels), of_groups(2 * n * groups);
  // What is bf16 is only where it may be, of the same values.
  std::vector<bf16> weight16(channels), bias16(channels), to_weight16(channels), to_bias16(channels);
  for (int c = 0; c < channels; ++c) put(&weight16[c], weight[c]), put(&bias16[c], bias[c]);
  std::vector<float> to_weight(channels), to_bias(channels);
  auto either = [&](auto& floats, auto& halves) { return bf16_weights ? (void*)halves.data() : (void*)floats.data(); };
  void *w = either(weight, weight16), *b = either(bias, bias16);
  void *to_w = either(to_weight, to_weight16), *to_b = either(to_bias, to_bias16);
  float *t = of_tiles.data(), *m = moments.data(), *g = of_groups.data();
  unsigned threads = lanes * rows;
  auto in = [](auto& tensor) { return (Wide*)tensor.data(); };
  launch(s.tiles, n, [&] { moments_of_tiles(in(x), t, s); }, threads);
  launch(groups, n, [&] { moments_of_groups(t, m, s); }, WARP);
  launch(s.tiles, n, [&] { apply(in(x), w, b, m, in(output), s); }, threads);
  launch(s.tiles, n, [&] { sums_of_tiles(in(x), in(grad), w, b, m, t, s); }, threads);
  launch(groups, n, [&] { sums_of_images(t, w, of_channels.data(), g, s); });
  launch(2, 1, [&] { sums_of_all(of_channels.data(), to_w, to_b, s); });
  Wide* straight = sizes[6] ? in(past) : nullptr;
  launch(s.tiles, n, [&] { gradient(in(x), in(grad), straight, w, b, m, g, in(to_x), s); }, threads);
  write(output);
  write(to_x);
  bf16_weights ? (write(to_weight16), write(to_bias16)) : (write(to_weight), write(to_bias));
}

// Images, pixels of each, channels, whether there is another one to add, and whether each image has a shift of its own; then a, b and the
// shifts. Gives the sum.
static void shifted() {
  auto sizes = read(5);
  size_t n = sizes[0], pixels = sizes[1], channels = sizes[2], count = n * pixels * channels;
  bool two = sizes[3], each = sizes[4];
  Images s{unsigned(channels / WIDE), unsigned(each ? pixels : n * pixels), unsigned(count / WIDE)};
  auto a = elements(read(count)), b = elements(read(count)), shift = elements(read(each ? n * channels : channels));
  std::vector<T> output(count);
  auto in = [](auto& tensor) { return (Wide*)tensor.data(); };
  launch(3, 1, [&] { add_shifted(in(a), two ? in(b) : nullptr, in(shift), in(output), s); });
  write(output);
}

// Rows, W, and the parts of the bias's gradient or 0 for none; then x [rows, 2 W], the output's gradient [rows, W] and the bias. Gives the
// output and the gradients of x and bias.
static void geglu() {
  auto sizes = read(3);
  size_t rows = sizes[0], width = sizes[1];
  unsigned parts = sizes[2];
  Sizes s{unsigned(width / WIDE), unsigned(rows * width / WIDE)};
  auto x = elements(read(2 * rows * width)), grad = elements(read(rows * width)), bias = elements(read(2 * width));
  std::vector<T> output(rows * width), to_x(2 * rows * width), to_bias(2 * width);
  std::vector<float> found(2 * width * parts);
  auto in = [](auto& tensor) { return (Wide*)tensor.data(); };
  // Fewer threads than elements.
  launch(3, 1, [&] { forward(in(x), parts ? in(bias) : nullptr, in(output), s); });
  if (!parts) {
    launch(3, 1, [&] { backward(in(x), in(grad), in(to_x), s); });
  } else {
    launch((s.width + WARP - 1) / WARP, parts, [&] { backward_with_bias(in(x), in(bias), in(grad), in(to_x), found.data(), s); });
    launch((2 * width + WARP - 1) / WARP, 1, [&] {
      sums_of_parts(found.data(), to_bias.data(), to_bias.data() + width, parts, width, sizeof(T) == 2);
    });
  }
  write(output), write(to_x), write(to_bias);
}

// Rows, their width, whether weights are bf16, whether something is added, and the blocks of the backward pass; then x, what is added, the
// gradients of sum and output, weight and bias. Gives sum, output, and the gradients of x, weight and bias.
static void layer_norm() {
  auto sizes = read(5);
  size_t rows = sizes[0];
  int width = sizes[1], bf16_weights = sizes[2];
  unsigned parts = sizes[4];
  Rows r{rows, width, bf16_weights, 1e-5f};
  auto x = elements(read(rows * width)), added = elements(read(rows * width)), to_sum = elements(read(rows * width)),
       grad = elements(read(rows * width));
  auto weights = read(width), biases = read(width);
  auto weights_bf16 = elements<bf16>(weights), biases_bf16 = elements<bf16>(biases);
  const void *weight = bf16_weights ? (void*)weights_bf16.data() : weights.data();
  const void *bias = bf16_weights ? (void*)biases_bf16.data() : biases.data();
  std::vector<T> sum(x), output(x.size()), to_x(x.size());
  std::vector<float> moments(2 * rows), found(2 * width * parts), to_weights(width), to_biases(width);
  std::vector<bf16> to_weights_bf16(width), to_biases_bf16(width);
  bool adds = sizes[3];
  launch((rows + 1) / 2, 1, [&] {
    normalise_sums(x.data(), adds ? added.data() : nullptr, weight, bias, sum.data(), output.data(), moments.data(), r);
  });
  launch(parts, 1, [&] {
    gradients_of_sums(sum.data(), to_sum.data(), grad.data(), weight, moments.data(), to_x.data(), found.data(), r);
  });
  launch((2 * width + WARP - 1) / WARP, 1, [&] {
    bf16_weights ? sums_of_parts(found.data(), to_weights_bf16.data(), to_biases_bf16.data(), parts, width, true)
                 : sums_of_parts(found.data(), to_weights.data(), to_biases.data(), parts, width, false);
  });
  write(sum), write(output), write(to_x);
  bf16_weights ? (write(to_weights_bf16), write(to_biases_bf16)) : (write(to_weights), write(to_biases));
}

// Learning rate, count, divisor, skip, the rate and decays of AdamW, what is fresh of averages, the lengths of two pieces, and whether moments are bf16; then of
// each piece gradient, master weights, moments and averages. Gives the last four, and working weights.
static void adamw() {
  auto numbers = read(12);
  float *scalars = numbers.data();
  Step s{scalars, scalars + 1, scalars + 2, scalars + 3, scalars + 8, scalars[4], scalars[5], scalars[6], scalars[7], scalars[11] != 0};
  std::vector<std::vector<float>> state;
  std::vector<std::vector<bf16>> rounded;
  std::vector<std::vector<T>> tensors;
  Pieces pieces{};
  unsigned blocks = 0;
  state.reserve(8), tensors.reserve(4), rounded.reserve(4);
  for (unsigned length : {unsigned(scalars[9]), unsigned(scalars[10])}) {
    tensors.push_back(elements(read(length)));
    const T* grad = tensors.back().data();
    for (int i = 0; i < 4; ++i) state.push_back(read(length));
    float *master = state.end()[-4].data(), *ema = state.end()[-1].data();
    void *m = state.end()[-3].data(), *v = state.end()[-2].data();
    if (s.bf16_moments) {
      for (int i : {-3, -2}) rounded.push_back(elements<bf16>(state.end()[i]));
      m = rounded.end()[-2].data(), v = rounded.end()[-1].data();
    }
    tensors.push_back(std::vector<T>(length));
    pieces.of[pieces.count++] = {grad, master, m, v, ema, tensors.back().data(), length, blocks};
    blocks += (length + STRETCH - 1) / STRETCH;
  }
  pieces.bf16_weights = sizeof(T) == 2;
  float found[3];
  launch(1, 1, [&] { if (threadIdx.x == 0) common(s, found); });
  launch(blocks, 1, [&] { step(pieces, s, found); });
  for (int i = 0; i < pieces.count; ++i) {
    for (int j = 0; j < 4; ++j) {
      bool is_rounded = s.bf16_moments && (j == 1 || j == 2);
      is_rounded ? write(rounded[2 * i + j - 1]) : write(state[4 * i + j]);
    }
    write(tensors[2 * i + 1]);
  }
}

int main(int, char** arguments) {
  std::string which = arguments[1];
  if (which == "adamw") adamw();
  if (which == "geglu") geglu();
  if (which == "shifted") shifted();
  if (which == "layer_norm") layer_norm();
  if (which == "group_norm") group_norm();
}
