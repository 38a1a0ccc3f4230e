// Autograd: hooks on gradients, gradient checkpointing, and operations whose backward pass is
// written in Rust.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "common.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr size_t MAX_MESSAGE = 512;

std::vector<at::Tensor*> to_pointers(std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor*> pointers;
  for (auto& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

// Frees what Rust gave as `context`.
using DropContext = void (*)(void* context);

// Takes over `grad`, which may be null. Returns false and writes `message` if the hook failed.
using CallHook = bool (*)(void* context, at::Tensor* grad, char* message, size_t message_size);

// Takes a gradient from its parameter as soon as it is complete, and passes it to Rust.
struct GradHook : torch::autograd::PostAccumulateGradHook {
  GradHook(void* context, CallHook call, DropContext drop) : context(context), call(call), drop(drop) {}
  ~GradHook() override { drop(context); }
  GradHook(const GradHook&) = delete;
  GradHook& operator=(const GradHook&) = delete;

  void operator()(const at::Tensor& param) override {
    auto grad = std::make_unique<at::Tensor>(std::move(param.mutable_grad()));
    param.mutable_grad() = at::Tensor();
    char message[MAX_MESSAGE];
    if (!call(context, grad.release(), message, sizeof message)) throw std::runtime_error(message);
  }

  void* context;
  CallHook call;
  DropContext drop;
};

// Calls Rust before the backward pass of an operation.
struct PreBackwardHook : torch::autograd::FunctionPreHook {
  PreBackwardHook(void* context, CallHook call, DropContext drop) : context(context), call(call), drop(drop) {}
  ~PreBackwardHook() override { drop(context); }
  PreBackwardHook(const PreBackwardHook&) = delete;
  PreBackwardHook& operator=(const PreBackwardHook&) = delete;

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    char message[MAX_MESSAGE];
    if (!call(context, nullptr, message, sizeof message)) throw std::runtime_error(message);
    return grads;
  }

  void* context;
  CallHook call;
  DropContext drop;
};

// Returns a new tensor, or null and writes `message`.
using CallForward = at::Tensor* (*)(void* context, at::Tensor** inputs, size_t count, bool recomputes, char* message,
                                    size_t message_size);

// Gradient checkpointing: keeps nothing but the inputs of a module; the backward pass computes its
// forward pass again.
struct CheckpointNode : torch::autograd::Node {
  CheckpointNode(const std::vector<at::Tensor>& inputs, void* context, CallForward call, DropContext drop)
      : Node(torch::autograd::collect_next_edges(inputs)), context(context), call(call), drop(drop) {
    for (const auto& input : inputs) saved_inputs.emplace_back(input, /*is_output=*/false);
  }
  ~CheckpointNode() override { drop(context); }

  at::Tensor forward(std::vector<at::Tensor>& inputs, bool recomputes) {
    auto pointers = to_pointers(inputs);
    char message[MAX_MESSAGE];
    std::unique_ptr<at::Tensor> output(call(context, pointers.data(), pointers.size(), recomputes, message, sizeof message));
    if (!output) throw std::runtime_error(message);
    return *output;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    at::AutoGradMode enabled(true);
    std::vector<at::Tensor> inputs;
    for (auto& variable : saved_inputs) {
      auto input = variable.unpack();
      inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    }
    auto output = forward(inputs, /*recomputes=*/true);
    torch::autograd::variable_list input_grads;
    // Where everything is frozen there is no graph to go back through.
    if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    for (auto& input : inputs) input_grads.push_back(input.grad());
    return input_grads;
  }

  void release_variables() override { saved_inputs.clear(); }

  std::vector<torch::autograd::SavedVariable> saved_inputs;
  void* context;
  CallForward call;
  DropContext drop;
};

// Writes a new tensor for each input to `input_grads`, or null for an input without a gradient.
// Returns false and writes `message` on failure.
using CallBackward = bool (*)(void* context, at::Tensor** saved, size_t saved_count, at::Tensor** output_grads, size_t output_count,
                              at::Tensor** input_grads, char* message, size_t message_size);

// The backward pass of an operation of Rust's, with the tensors that it needs.
struct CustomBackward : torch::autograd::Node {
  CustomBackward(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& tensors, void* context, CallBackward call,
                 DropContext drop)
      : Node(torch::autograd::collect_next_edges(inputs)),
        input_count(inputs.size()),
        context(context),
        call(call),
        drop(drop) {
    for (const auto& tensor : tensors) saved.emplace_back(tensor, /*is_output=*/false);
  }
  ~CustomBackward() override { drop(context); }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!released,
                "a backward pass went through the graph a second time, after the tensors that it had saved were freed");
    std::vector<at::Tensor> tensors;
    for (auto& variable : saved) tensors.push_back(variable.unpack());
    auto pointers = to_pointers(tensors);
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < grads.size(); ++i) {
      // An output that nothing was computed from has no gradient.
      if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();
    }
    auto output_grads = to_pointers(grads);
    std::vector<at::Tensor*> input_grads(input_count, nullptr);
    char message[MAX_MESSAGE];
    bool succeeded = call(context, pointers.data(), pointers.size(), output_grads.data(), output_grads.size(), input_grads.data(),
                          message, sizeof message);
    torch::autograd::variable_list out;
    for (auto* grad : input_grads) out.push_back(grad ? std::move(*std::unique_ptr<at::Tensor>(grad)) : at::Tensor());
    if (!succeeded) throw std::runtime_error(message);
    return out;
  }

  void release_variables() override {
    saved.clear();
    released = true;
  }

  size_t input_count;
  bool released = false;
  std::vector<torch::autograd::SavedVariable> saved;
  void* context;
  CallBackward call;
  DropContext drop;
};

}  // namespace

extern "C" {

char* tm_register_grad_hook(at::Tensor* param, void* context, CallHook call, DropContext drop) {
  auto hook = std::make_unique<GradHook>(context, call, drop);
  return catch_errors([&] { torch::autograd::impl::set_post_acc_grad_hooks(*param, std::move(hook)); });
}

char* tm_remove_grad_hook(at::Tensor* param) {
  return catch_errors([&] { torch::autograd::impl::set_post_acc_grad_hooks(*param, nullptr); });
}

char* tm_register_pre_backward_hook(at::Tensor* output, void* context, CallHook call, DropContext drop) {
  auto hook = std::make_unique<PreBackwardHook>(context, call, drop);
  return catch_errors([&] {
    if (auto node = output->grad_fn()) node->add_pre_hook(std::move(hook));
  });
}

char* tm_gradient_checkpoint(at::Tensor** inputs, size_t input_count, void* context, CallForward call, DropContext drop,
                             at::Tensor** out) {
  return catch_errors([&] {
    auto tensors = to_vector(inputs, input_count);
    std::shared_ptr<CheckpointNode> node(new CheckpointNode(tensors, context, call, drop), torch::autograd::deleteNode);
    at::Tensor output;
    {
      at::NoGradGuard no_grad;
      output = node->forward(tensors, /*recomputes=*/false);
    }
    if (at::GradMode::is_enabled()) torch::autograd::create_gradient_edge(output, node);
    *out = new at::Tensor(output);
  });
}

// Connects `outputs` with `inputs` in autograd's graph, unless no gradients are wanted.
char* tm_attach_backward(at::Tensor** outputs, size_t output_count, at::Tensor** inputs, size_t input_count, at::Tensor** saved,
                         size_t saved_count, void* context, CallBackward call, DropContext drop) {
  return catch_errors([&] {
    auto tensors = to_vector(inputs, input_count);
    std::shared_ptr<CustomBackward> node(
        new CustomBackward(tensors, to_vector(saved, saved_count), context, call, drop), torch::autograd::deleteNode);
    bool needs_grad = std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.requires_grad(); });
    if (!at::GradMode::is_enabled() || !needs_grad) return;
    for (size_t i = 0; i < output_count; ++i) torch::autograd::create_gradient_edge(*outputs[i], node);
  });
}

}  // extern "C"
