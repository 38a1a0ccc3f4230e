// AdamW (Loshchilov & Hutter, 2019), averaged weights and new working weights in one pass over memory, as torch.optim.AdamW computes
// them. A launch takes as many pieces of parameters as its arguments have room for; a block takes STRETCH elements of one of them.

#define PIECES 64
#define STRETCH 4096

struct Piece {
  const T* grad;
  float *master, *exp_avg, *exp_avg_sq;
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
  // On the device; `skip` may be null.
  const float *learning_rate, *count, *divisor, *skip;
  double beta1, beta2, eps, weight_decay;
  // Of what is new in averages.
  float fresh;
};

// One thread. What all elements have in common: decay, step size, reciprocal root of the second moment's correction.
extern "C" __global__ void common(Step s, float* found) {
  double lr = *s.learning_rate, t = *s.count;
  found[0] = 1.0 - lr * s.weight_decay;
  found[1] = lr / (1.0 - pow(s.beta1, t));
  found[2] = 1.0 / sqrt(1.0 - pow(s.beta2, t));
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
  float decay = common[0], step_size = common[1], correction = common[2], divisor = *s.divisor;
  float beta1 = s.beta1, beta2 = s.beta2, new1 = 1.0 - s.beta1, new2 = 1.0 - s.beta2, eps = s.eps;
  for (size_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    float g = get(p.grad[i]) / divisor;
    float m = beta1 * p.exp_avg[i] + new1 * g;
    float v = beta2 * p.exp_avg_sq[i] + new2 * g * g;
    float w = p.master[i] * decay - step_size * m / (sqrtf(v) * correction + eps);
    p.exp_avg[i] = m;
    p.exp_avg_sq[i] = v;
    p.master[i] = w;
    if (p.ema) p.ema[i] += s.fresh * (w - p.ema[i]);
    if (p.weights && pieces.bf16_weights) put((bf16*)p.weights + i, w);
    if (p.weights && !pieces.bf16_weights) put((float*)p.weights + i, w);
  }
}
