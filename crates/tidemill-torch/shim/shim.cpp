// The doors that tch does not have. Every function returns nullptr, or an error text that the
// caller frees with tm_free: no C++ exception may cross into Rust.

#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "guarded.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

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

// Gives a new tensor, or null and why.
using CallForward = at::Tensor* (*)(void* context, at::Tensor** inputs, size_t n, char* message, size_t room);

// A part of a network of which nothing but its inputs is kept: the backward pass computes it again.
struct Recomputed : torch::autograd::Node {
  Recomputed(const std::vector<at::Tensor>& inputs, void* context, CallForward call, DropHook drop)
      : Node(torch::autograd::collect_next_edges(inputs)), context(context), call(call), drop(drop) {
    for (const auto& input : inputs) saved.emplace_back(input, /*is_output=*/false);
  }
  ~Recomputed() override { drop(context); }

  at::Tensor forward(std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor*> pointers;
    for (auto& input : inputs) pointers.push_back(&input);
    char message[512];
    std::unique_ptr<at::Tensor> output(call(context, pointers.data(), pointers.size(), message, sizeof message));
    if (!output) throw std::runtime_error(message);
    return *output;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    at::AutoGradMode enabled(true);
    std::vector<at::Tensor> inputs;
    for (auto& variable : saved) {
      auto input = variable.unpack();
      inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    }
    auto output = forward(inputs);
    torch::autograd::variable_list out;
    // Where all is frozen there is nothing to do.
    if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    for (auto& input : inputs) out.push_back(input.grad());
    return out;
  }

  void release_variables() override { saved.clear(); }

  std::vector<torch::autograd::SavedVariable> saved;
  void* context;
  CallForward call;
  DropHook drop;
};

// Gives a new tensor for each input, or null for none; false and why if it cannot.
using CallBackward = bool (*)(void* context, at::Tensor** saved, size_t n, at::Tensor** outputs, size_t m, at::Tensor** grads,
                              char* message, size_t room);

// An operation whose backward pass is Rust's. It keeps what the pass needs.
struct Operation : torch::autograd::Node {
  Operation(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& kept, void* context, CallBackward call,
            DropHook drop)
      : Node(torch::autograd::collect_next_edges(inputs)), inputs(inputs.size()), context(context), call(call), drop(drop) {
    for (const auto& tensor : kept) saved.emplace_back(tensor, /*is_output=*/false);
  }
  ~Operation() override { drop(context); }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!released, "a backward pass went through the graph a second time, after what was kept for it was freed");
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor*> pointers;
    for (auto& variable : saved) tensors.push_back(variable.unpack());
    for (auto& tensor : tensors) pointers.push_back(&tensor);
    std::vector<at::Tensor*> found(inputs, nullptr), outputs;
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < grads.size(); ++i) {
      // Of what nothing was made.
      if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();
      outputs.push_back(&grads[i]);
    }
    char message[512];
    bool done = call(context, pointers.data(), pointers.size(), outputs.data(), outputs.size(), found.data(), message,
                     sizeof message);
    torch::autograd::variable_list out;
    for (auto* tensor : found) out.push_back(tensor ? std::move(*std::unique_ptr<at::Tensor>(tensor)) : at::Tensor());
    if (!done) throw std::runtime_error(message);
    return out;
  }

  void release_variables() override {
    saved.clear();
    released = true;
  }

  size_t inputs;
  bool released = false;
  std::vector<torch::autograd::SavedVariable> saved;
  void* context;
  CallBackward call;
  DropHook drop;
};

using Allocate = void* (*)(size_t bytes);
using Free = void (*)(void* memory);

// Has tensors on the CPU come from functions of Rust's.
struct TensorMemory : at::Allocator {
  TensorMemory(Allocate allocate, Free free) : allocate_(allocate), free_(free) {}

  at::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : allocate_(bytes);
    TORCH_CHECK(memory || bytes == 0, "not enough memory for a tensor of ", bytes, " bytes");
    return {memory, memory, free_, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return free_; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  Allocate allocate_;
  Free free_;
};

}  // namespace

extern "C" {

void tm_free(char* text) { free(text); }

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

// What goes from one rank to another has no functional form that goes by the group's name. One of the two sends first:
// on a GPU both are on one stream.
char* tm_exchange(at::Tensor* tensor, int64_t peer, bool first, const char* group) {
  return guarded([&] {
    auto ranks = c10d::resolve_process_group(group);
    std::vector<at::Tensor> ours{*tensor}, theirs{at::empty_like(*tensor)};
    auto send = [&] { ranks->send(ours, peer, 0)->wait(); };
    if (first) send();
    ranks->recv(theirs, peer, 0)->wait();
    if (!first) send();
    tensor->copy_(theirs[0]);
  });
}

char* tm_fused_adamw(at::Tensor* param, at::Tensor* grad, at::Tensor* exp_avg, at::Tensor* exp_avg_sq, at::Tensor* step,
                     at::Tensor* lr, double beta1, double beta2, double weight_decay, double eps, at::Tensor* divisor,
                     at::Tensor* skip) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::optional<at::Tensor> found_inf;
    if (skip) found_inf = *skip;
    at::_fused_adamw_({*param}, {*grad}, {*exp_avg}, {*exp_avg_sq}, {}, {*step}, *lr, beta1, beta2, weight_decay, eps,
                      /*amsgrad=*/false, /*maximize=*/false, *divisor, found_inf);
  });
}

char* tm_norms(at::Tensor** tensors, size_t n, at::Tensor** out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    *out = new at::Tensor(at::stack(at::_foreach_norm(list(tensors, n), /*ord=*/2, at::kFloat)));
  });
}

// The operation that torch.compile has linear maps from; it has no function in libtorch's headers, and no gradient.
char* tm_onednn_linear(at::Tensor* x, at::Tensor* weight, at::Tensor* bias, at::Tensor** out) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                            c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  return guarded([&] {
    static auto linear =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Linear>();
    at::NoGradGuard no_grad;
    std::optional<at::Tensor> added;
    if (bias) added = *bias;
    *out = new at::Tensor(linear.call(*x, *weight, added, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt));
  });
}

char* tm_on_grad(at::Tensor* param, void* context, CallHook call, DropHook drop) {
  auto hook = std::make_unique<GradHook>(context, call, drop);
  return guarded([&] { torch::autograd::impl::set_post_acc_grad_hooks(*param, std::move(hook)); });
}

char* tm_off_grad(at::Tensor* param) {
  return guarded([&] { torch::autograd::impl::set_post_acc_grad_hooks(*param, nullptr); });
}

// The tensor that Python knows by the address of its TensorImpl.
char* tm_from_impl(void* impl, at::Tensor** out) {
  return guarded([&] {
    auto* tensor = static_cast<at::TensorImpl*>(impl);
    *out = new at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(tensor));
  });
}

// A copy in memory that a GPU can read by itself. (tch has no call without a device, about which libtorch then complains.)
char* tm_pin(at::Tensor* tensor, at::Tensor** out) {
  return guarded([&] { *out = new at::Tensor(tensor->pin_memory()); });
}

char* tm_to_dlpack(at::Tensor* tensor, DLManagedTensor** out) {
  return guarded([&] { *out = at::toDLPack(*tensor); });
}

void tm_set_cpu_allocator(Allocate allocate, Free free) {
  // Tensors may outlive whatever ends in a process: it is never freed.
  at::SetCPUAllocator(new TensorMemory(allocate, free), /*priority=*/UINT8_MAX);
}

char* tm_start_profile(bool cuda) {
  return guarded([&] {
    namespace profiler = torch::autograd::profiler;
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> activities{ActivityType::CPU};
    if (cuda) activities.insert(ActivityType::CUDA);
    torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                 /*report_input_shapes=*/true);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities,
                             {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  });
}

char* tm_recompute(at::Tensor** inputs, size_t n, void* context, CallForward call, DropHook drop, at::Tensor** out) {
  return guarded([&] {
    auto tensors = list(inputs, n);
    std::shared_ptr<Recomputed> node(new Recomputed(tensors, context, call, drop), torch::autograd::deleteNode);
    at::Tensor output;
    {
      at::NoGradGuard no_grad;
      output = node->forward(tensors);
    }
    if (at::GradMode::is_enabled()) torch::autograd::create_gradient_edge(output, node);
    *out = new at::Tensor(output);
  });
}

// Has the backward pass know that `outputs` were computed from `inputs`, unless there will be none.
char* tm_operation(at::Tensor** outputs, size_t k, at::Tensor** inputs, size_t n, at::Tensor** kept, size_t m, void* context,
                   CallBackward call, DropHook drop) {
  return guarded([&] {
    auto tensors = list(inputs, n);
    std::shared_ptr<Operation> node(new Operation(tensors, list(kept, m), context, call, drop), torch::autograd::deleteNode);
    bool wanted = std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.requires_grad(); });
    if (!at::GradMode::is_enabled() || !wanted) return;
    for (size_t i = 0; i < k; ++i) torch::autograd::create_gradient_edge(*outputs[i], node);
  });
}

// Calls `call` for stretches of 0 .. n, on the threads that libtorch's operations run on: an iteration over numbers, of which
// nothing but their places is looked at.
char* tm_parallel(const char* name, size_t n, void* context, void (*call)(void* context, size_t begin, size_t end)) {
  return guarded([&] {
    RECORD_FUNCTION(name, std::vector<c10::IValue>());
    auto places = at::empty({static_cast<int64_t>(n)}, at::kByte);
    auto iterator = at::TensorIterator::nullary_op(places);
    auto* first = static_cast<char*>(places.data_ptr());
    iterator.for_each(
        [&](char** data, const int64_t*, int64_t count) {
          size_t begin = data[0] - first;
          call(context, begin, begin + count);
        },
        /*grain_size=*/1);
  });
}

// Without a path, what was noted is dropped.
char* tm_end_profile(const char* path) {
  return guarded([&] {
    auto profile = torch::autograd::profiler::disableProfiler();
    if (path) profile->save(path);
  });
}

}  // extern "C"
