// AdamW (Loshchilov & Hutter, 2019), averaged weights and new working weights in one pass over
// memory, with the formulas of torch.optim.AdamW. A launch takes as many slices of parameters as
// its arguments have room for; a block takes CHUNK elements of one slice.

#define MAX_SLICES 64
#define CHUNK 4096

struct ParamSlice {
  const T* grad;
  float* master;
  // float or bf16.
  void *exp_avg, *exp_avg_sq;
  // May be null.
  float* ema;
  // float or bf16; may be null.
  void* weights;
  unsigned length, first_block;
};

struct ParamSlices {
  ParamSlice at[MAX_SLICES];
  int count, has_bf16_weights;
};

struct AdamWArguments {
  // On the device; `skip` may be null. `ema_rate`: the share of the new weights in the averages.
  const float *learning_rate, *step, *grad_divisor, *skip, *ema_rate;
  double beta1, beta2, eps, weight_decay;
  int has_bf16_moments;
};

// One thread. Computes what all elements have in common: decay, step size, and the reciprocal root
// of the second moment's correction.
extern "C" __global__ void adamw_coefficients(AdamWArguments a, float* coefficients) {
  double lr = *a.learning_rate, t = *a.step;
  coefficients[0] = 1.0 - lr * a.weight_decay;
  coefficients[1] = lr / (1.0 - pow(a.beta1, t));
  coefficients[2] = 1.0 / sqrt(1.0 - pow(a.beta2, t));
}

// The factors that are the same for all elements of a step.
struct Coefficients {
  float decay, step_size, correction, grad_divisor, step, eps, ema_rate;
  int has_bf16_weights;
};

// Random bits from the moments and the step, the same as `random_bits` in ../cpu/adamw.rs.
__device__ inline unsigned random_bits(float exp_avg, float exp_avg_sq, float step) {
  unsigned x = __float_as_uint(exp_avg) ^ (__float_as_uint(exp_avg_sq) + __float_as_uint(step)) * 0x9E3779B1u;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// Stochastic rounding: up or down, to the nearer the more often, by 16 random bits.
__device__ inline void store_stochastic(float* to, float value, unsigned) { *to = value; }
__device__ inline void store_stochastic(bf16* to, float value, unsigned random) {
  unsigned bits = __float_as_uint(value);
  bool finite = (bits & 0x7F800000) != 0x7F800000;
  if (finite) *to = (bf16)((bits + random) >> 16);
  else store(to, value);
}

// The step of element `i`. Everything is read before anything is written, because as far as the
// compiler knows slices may overlap.
template <typename M>
__device__ inline void step_element(const ParamSlice& p, size_t i, const AdamWArguments& a, Coefficients c) {
  M *m = (M*)p.exp_avg + i, *v = (M*)p.exp_avg_sq + i;
  float grad = load(p.grad[i]), old_m = load(*m), old_v = load(*v), master = p.master[i], ema = p.ema ? p.ema[i] : 0.0f;
  float beta1 = a.beta1, beta2 = a.beta2, rate1 = 1.0 - a.beta1, rate2 = 1.0 - a.beta2, g = grad / c.grad_divisor;
  float new_m = beta1 * old_m + rate1 * g, new_v = beta2 * old_v + rate2 * g * g;
  float w = master * c.decay - c.step_size * new_m / (sqrtf(new_v) * c.correction + c.eps);
  unsigned bits = random_bits(new_m, new_v, c.step);
  store_stochastic(m, new_m, bits & 0xFFFF);
  store_stochastic(v, new_v, bits >> 16);
  p.master[i] = w;
  if (p.ema) p.ema[i] = ema + c.ema_rate * (w - ema);
  if (!p.weights) return;
  if (c.has_bf16_weights) store((bf16*)p.weights + i, w);
  else ((float*)p.weights)[i] = w;
}

extern "C" __global__ void adamw_step(ParamSlices slices, AdamWArguments a, const float* coefficients) {
  if (a.skip && *a.skip == 1.0f) return;
  // Binary search for the last slice that begins at this block or before.
  int low = 0;
  for (int high = slices.count; high - low > 1;) {
    int middle = (low + high) / 2;
    (slices.at[middle].first_block <= blockIdx.x ? low : high) = middle;
  }
  ParamSlice p = slices.at[low];
  size_t begin = (size_t)(blockIdx.x - p.first_block) * CHUNK, end = min(begin + CHUNK, (size_t)p.length);
  Coefficients c{coefficients[0], coefficients[1], coefficients[2], *a.grad_divisor,
                 *a.step,         (float)a.eps,    *a.ema_rate,     slices.has_bf16_weights};
  for (size_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    a.has_bf16_moments ? step_element<bf16>(p, i, a, c) : step_element<float>(p, i, a, c);
  }
}
