// GEGLU of x [rows, 2 W], which holds a and then b in each row: a gelu(b), with the exact GELU. A thread takes elements of [rows, W].

struct Sizes {
  size_t rows, width;
};

// The normal distribution's cumulative function.
__device__ inline float cumulative(float b) { return 0.5f * (1.0f + erff(b * 0.70710678f)); }

extern "C" __global__ void forward(const T* x, T* output, Sizes s) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.rows * s.width; i += (size_t)gridDim.x * blockDim.x) {
    const T* a = x + i + i / s.width * s.width;
    float b = get(a[s.width]);
    put(output + i, get(*a) * b * cumulative(b));
  }
}

extern "C" __global__ void backward(const T* x, const T* grad, T* to_x, Sizes s) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.rows * s.width; i += (size_t)gridDim.x * blockDim.x) {
    size_t at = i + i / s.width * s.width;
    float a = get(x[at]), b = get(x[at + s.width]), g = get(grad[i]);
    float c = cumulative(b), density = 0.39894228f * expf(-0.5f * b * b);
    put(to_x + at, g * b * c);
    put(to_x + at + s.width, g * a * (c + b * density));
  }
}
