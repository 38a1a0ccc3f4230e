// What the blocks of a backward pass have found of columns, [parts, 2 W], added up: the first W of it, and the second. Blocks of as many
// columns as a warp has lanes; the warps share the `parts`. All sums are added up in a fixed order.
extern "C" __global__ void sums_of_parts(const float* found, void* first, void* second, int parts, int width, int to_bf16) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, c = blockIdx.x * WARP + lane;
  float total = 0;
  // Lanes beyond the last column add up the last one, for nobody.
  const float* column = found + min(c, 2 * width - 1);
#pragma unroll 8
  for (int p = warp; p < parts; p += warps) total += column[(size_t)2 * width * p];
  shared[threadIdx.x] = total;
  __syncthreads();
  if (warp || c >= 2 * width) return;
  for (int w = 1; w < warps; ++w) total += shared[w * WARP + lane];
  void* to = c < width ? first : second;
  c %= width;
  if (to_bf16) put((bf16*)to + c, total);
  else ((float*)to)[c] = total;
}
