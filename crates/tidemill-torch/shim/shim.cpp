// The doors that tch does not have. Every function returns nullptr, or an error text that the
// caller frees with tm_free: no C++ exception may cross into Rust.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

template <typename F>
char* guarded(F&& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

// Calls an operator through the dispatcher, boxed: the backends (Gloo, NCCL) register their kernels
// there at run time, so none of their headers is needed.
at::Tensor call(const char* name, torch::jit::Stack stack) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

std::vector<at::Tensor> list(at::Tensor** tensors, size_t n) {
  std::vector<at::Tensor> out;
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) out.push_back(*tensors[i]);
  return out;
}

using CallHook = bool (*)(void* context, at::Tensor* grad, char* message, size_t room);
using DropHook = void (*)(void* context);

// Takes a gradient from its parameter as soon as it is complete, and hands it over to Rust.
struct GradHook : torch::autograd::PostAccumulateGradHook {
  GradHook(void* context, CallHook call, DropHook drop) : context(context), call(call), drop(drop) {}
  ~GradHook() override { drop(context); }
  GradHook(const GradHook&) = delete;
  GradHook& operator=(const GradHook&) = delete;

  void operator()(const at::Tensor& param) override {
    auto grad = std::make_unique<at::Tensor>(std::move(param.mutable_grad()));
    param.mutable_grad() = at::Tensor();
    char message[512];
    if (!call(context, grad.release(), message, sizeof message)) throw std::runtime_error(message);
  }

  void* context;
  CallHook call;
  DropHook drop;
};

}  // namespace

extern "C" {

void tm_free(char* text) { free(text); }

char* tm_load_cuda(bool* loaded) {
  *loaded = false;
  // Without a driver there is no GPU, and libtorch's CUDA half takes long to load.
  if (!dlopen("libcuda.so.1", RTLD_LAZY)) return nullptr;
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return strdup(dlerror());
  *loaded = true;
  return nullptr;
}

char* tm_all_reduce(at::Tensor* input, const char* op, const char* group, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(call("_c10d_functional::all_reduce", {*input, std::string(op), std::string(group)}));
  });
}

char* tm_reduce_scatter(at::Tensor* input, const char* op, int64_t world, const char* group, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(
        call("_c10d_functional::reduce_scatter_tensor", {*input, std::string(op), world, std::string(group)}));
  });
}

char* tm_all_gather(at::Tensor* input, int64_t world, const char* group, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(
        call("_c10d_functional::all_gather_into_tensor", {*input, world, std::string(group)}));
  });
}

char* tm_all_gather_into(at::Tensor* input, at::Tensor* output, int64_t world, const char* group, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(
        call("_c10d_functional::all_gather_into_tensor_out", {*input, world, std::string(group), *output}));
  });
}

char* tm_broadcast(at::Tensor* tensor, int64_t from, const char* group, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(call("_c10d_functional::broadcast_", {*tensor, from, std::string(group)}));
  });
}

char* tm_wait(at::Tensor* pending, at::Tensor** out) {
  return guarded([&] { *out = new at::Tensor(call("_c10d_functional::wait_tensor", {*pending})); });
}

char* tm_fused_adamw(at::Tensor** params, at::Tensor** grads, at::Tensor** exp_avgs, at::Tensor** exp_avg_sqs,
                     at::Tensor** steps, size_t n, double lr, double beta1, double beta2, double weight_decay,
                     double eps, at::Tensor* divisor, at::Tensor* skip) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::optional<at::Tensor> grad_scale, found_inf;
    if (divisor) grad_scale = *divisor;
    if (skip) found_inf = *skip;
    at::_fused_adamw_(list(params, n), list(grads, n), list(exp_avgs, n), list(exp_avg_sqs, n), {}, list(steps, n),
                      lr, beta1, beta2, weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false, grad_scale, found_inf);
  });
}

char* tm_on_grad(at::Tensor* param, void* context, CallHook call, DropHook drop) {
  auto hook = std::make_unique<GradHook>(context, call, drop);
  return guarded([&] { torch::autograd::impl::set_post_acc_grad_hooks(*param, std::move(hook)); });
}

}  // extern "C"
