// The sum of images [N, H, W, C] and of a bias that is the same for all pixels of a channel. A
// thread takes one Vector of channels of a pixel at a time.

struct ImageSizes {
  // C in Vectors; the number of pixels that have the same bias; and the number of Vectors: few
  // enough for 32 bits, in which a division is fast.
  unsigned channels, pixels, total;
};

// `b` [N, H, W, C] may be null; `bias` is [C], or [N, C].
extern "C" __global__ void add_channel_bias(const Vector* a, const Vector* b, const Vector* bias, Vector* output, ImageSizes s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.total; i += gridDim.x * blockDim.x) {
    unsigned pixel = i / s.channels, channel = i - pixel * s.channels;
    Vector sum = a[i], other{}, pixel_bias = bias[pixel / s.pixels * s.channels + channel];
    if (b) other = b[i];
    for (int j = 0; j < VECTOR_SIZE; ++j) store(sum.at + j, load(sum.at[j]) + load(pixel_bias.at[j]) + load(other.at[j]));
    output[i] = sum;
  }
}
