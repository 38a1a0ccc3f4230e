// The sum of images [N, H, W, C] and of what is the same for all pixels of a channel. A thread takes some channels of a pixel at once.

struct Images {
  // C, in Wides; pixels that have the same shift; and how many Wides there are: few enough for 32 bits, in which a division is fast.
  unsigned channels, pixels, all;
};

// `b` [N, H, W, C] may be none; `shift` is [C], or [N, C].
extern "C" __global__ void add_shifted(const Wide* a, const Wide* b, const Wide* shift, Wide* output, Images s) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.all; i += gridDim.x * blockDim.x) {
    unsigned pixel = i / s.channels, channel = i - pixel * s.channels;
    Wide sum = a[i], other{}, by = shift[pixel / s.pixels * s.channels + channel];
    if (b) other = b[i];
    for (int j = 0; j < WIDE; ++j) put(sum.of + j, get(sum.of[j]) + get(by.of[j]) + get(other.of[j]));
    output[i] = sum;
  }
}
