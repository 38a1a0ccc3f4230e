// Runs the kernels of group_norm_silu.cu on a CPU, thread for thread. Reads from standard input, as float: N, P, C, G, then x and the
// output's gradient [N, P, C], weight and bias [C]; writes the output, the gradient of x, and those of weight and bias of each
// image [N, C, 2].

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

struct Place { unsigned x = 0, y = 0; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim;
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

#include "../../src/kernels/group_norm_silu.cu"

// More than one channel for some of them.
constexpr unsigned THREADS = 8;

static void launch(unsigned x, unsigned y, const std::function<void()>& kernel) {
  blockDim = {THREADS};
  for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) {
      std::barrier<> barrier(THREADS);
      all = &barrier;
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < THREADS; ++i) threads.emplace_back([&kernel, i] { threadIdx = {i}; kernel(); });
    }
  }
}

static std::vector<float> read(size_t n) {
  std::vector<float> values(n);
  if (fread(values.data(), 4, n, stdin) != n) exit(2);
  return values;
}

static std::vector<T> elements(const std::vector<float>& values) {
  std::vector<T> found(values.size());
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

int main() {
  auto sizes = read(4);
  int n = sizes[0], pixels = sizes[1], channels = sizes[2], groups = sizes[3];
  Shape s{pixels, channels, groups, (pixels + TILE - 1) / TILE, 1e-5f};
  size_t count = size_t(n) * pixels * channels;
  auto x = elements(read(count)), grad = elements(read(count));
  auto weight = read(channels), bias = read(channels);
  std::vector<T> output(count), to_x(count);
  std::vector<float> of_tiles(size_t(2) * n * s.tiles * channels), moments(2 * n * groups);
  std::vector<float> of_channels(2 * n * channels), of_groups(2 * n * groups);
  float *w = weight.data(), *b = bias.data(), *t = of_tiles.data(), *m = moments.data(), *g = of_groups.data();
  launch(s.tiles, n, [&] { moments_of_tiles(x.data(), t, s); });
  launch(n, 1, [&] { moments_of_groups(t, m, s); });
  launch(s.tiles, n, [&] { apply(x.data(), w, b, m, output.data(), s); });
  launch(s.tiles, n, [&] { sums_of_tiles(x.data(), grad.data(), w, b, m, t, s); });
  launch(n, 1, [&] { sums_of_images(t, w, of_channels.data(), g, s); });
  launch(s.tiles, n, [&] { gradient(x.data(), grad.data(), w, b, m, g, to_x.data(), s); });
  write(output);
  write(to_x);
  write(of_channels);
}
