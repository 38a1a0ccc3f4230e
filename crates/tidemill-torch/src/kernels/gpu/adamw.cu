// AdamW (Loshchilov & Hutter, 2019), averaged weights and new working weights in one pass over memory, as torch.optim.AdamW computes
// them. A launch takes as many pieces of parameters as its arguments have room for; a block takes STRETCH elements of one of them.

#define PIECES 64
#define STRETCH 4096

struct Piece {
  const T* grad;
  float* master;
  // float or bf16.
  void *exp_avg, *exp_avg_sq;
  // Or null.
  float* ema;
  // float or bf16, or null.
  void* weights;
  unsigned length, first_block;
};

struct Pieces {
  Piece of[PIECES];
  int count, bf16_weights;
};

struct Step {
  // On the device; `skip` may be null. `fresh`: the share of what is new in averages.
  const float *learning_rate, *count, *divisor, *skip, *fresh;
  double beta1, beta2, eps, weight_decay;
  int bf16_moments;
};

// One thread. What all elements have in common: decay, step size, reciprocal root of the second moment's correction.
extern "C" __global__ void common(Step s, float* found) {
  double lr = *s.learning_rate, t = *s.count;
  found[0] = 1.0 - lr * s.weight_decay;
  found[1] = lr / (1.0 - pow(s.beta1, t));
  found[2] = 1.0 / sqrt(1.0 - pow(s.beta2, t));
}

// The same for all elements of a step.
struct Common {
  float decay, step_size, correction, divisor, count, eps, fresh;
  int bf16_weights;
};

// As `draw` in ../adamw.rs.
__device__ inline unsigned draw(float exp_avg, float exp_avg_sq, float count) {
  unsigned x = __float_as_uint(exp_avg) ^ (__float_as_uint(exp_avg_sq) + __float_as_uint(count)) * 0x9E3779B1u;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// One of the two around a value, each the more often the nearer it is, by 16 random bits.
__device__ inline void put_drawn(float* to, float value, unsigned) { *to = value; }
__device__ inline void put_drawn(bf16* to, float value, unsigned drawn) {
  unsigned bits = __float_as_uint(value);
  bool finite = (bits & 0x7F800000) != 0x7F800000;
  if (finite) *to = (bf16)((bits + drawn) >> 16);
  else put(to, value);
}

// One element's step, in which all that is read is read before anything is written: for pieces might overlap, as far as a compiler knows.
template <typename M>
__device__ inline void step_of(const Piece& p, size_t i, const Step& s, Common c) {
  M *m = (M*)p.exp_avg + i, *v = (M*)p.exp_avg_sq + i;
  float grad = get(p.grad[i]), old_m = get(*m), old_v = get(*v), master = p.master[i], ema = p.ema ? p.ema[i] : 0.0f;
  float beta1 = s.beta1, beta2 = s.beta2, new1 = 1.0 - s.beta1, new2 = 1.0 - s.beta2, g = grad / c.divisor;
  float new_m = beta1 * old_m + new1 * g, new_v = beta2 * old_v + new2 * g * g;
  float w = master * c.decay - c.step_size * new_m / (sqrtf(new_v) * c.correction + c.eps);
  unsigned drawn = draw(new_m, new_v, c.count);
  put_drawn(m, new_m, drawn & 0xFFFF);
  put_drawn(v, new_v, drawn >> 16);
  p.master[i] = w;
  if (p.ema) p.ema[i] = ema + c.fresh * (w - ema);
  if (!p.weights) return;
  if (c.bf16_weights) put((bf16*)p.weights + i, w);
  else ((float*)p.weights)[i] = w;
}

extern "C" __global__ void step(Pieces pieces, Step s, const float* common) {
  if (s.skip && *s.skip == 1.0f) return;
  // The last piece that begins at this block or before.
  int low = 0;
  for (int high = pieces.count; high - low > 1;) {
    int middle = (low + high) / 2;
    (pieces.of[middle].first_block <= blockIdx.x ? low : high) = middle;
  }
  Piece p = pieces.of[low];
  size_t begin = (size_t)(blockIdx.x - p.first_block) * STRETCH, end = min(begin + STRETCH, (size_t)p.length);
  Common c{common[0], common[1], common[2], *s.divisor, *s.count, (float)s.eps, *s.fresh, pieces.bf16_weights};
  for (size_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    s.bf16_moments ? step_of<bf16>(p, i, s, c) : step_of<float>(p, i, s, c);
  }
}
