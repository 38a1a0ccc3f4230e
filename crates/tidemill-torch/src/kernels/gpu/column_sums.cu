// Adds up the partial column sums that the blocks of a backward pass have written, `partial_sums`
// [parts, 2 W]: `first` gets the first W columns, `second` the others. A block takes as many
// columns as a warp has lanes; its warps share the parts. All sums are added up in a fixed order.
extern "C" __global__ void sum_columns(const float* partial_sums, void* first, void* second, int parts, int width, int is_bf16) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, c = blockIdx.x * WARP + lane;
  float total = 0;
  // Lanes beyond the last column read the last column, and write nothing.
  const float* column = partial_sums + min(c, 2 * width - 1);
#pragma unroll 8
  for (int p = warp; p < parts; p += warps) total += column[(size_t)2 * width * p];
  shared[threadIdx.x] = total;
  __syncthreads();
  if (warp || c >= 2 * width) return;
  for (int w = 1; w < warps; ++w) total += shared[w * WARP + lane];
  void* to = c < width ? first : second;
  c %= width;
  if (is_bf16) store((bf16*)to + c, total);
  else ((float*)to)[c] = total;
}
