// torch.distributed's collectives, by the name of the process group.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "common.h"

#include <string>
#include <vector>

namespace {

// Calls an operator through the dispatcher, boxed: the backends (Gloo, NCCL) register their kernels
// there at run time, so none of their headers is needed.
at::Tensor call_operator(const char* name, torch::jit::Stack stack) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

}  // namespace

extern "C" {

char* tm_all_reduce(at::Tensor* input, const char* op, const char* group, at::Tensor** out) {
  return catch_errors([&] {
    *out = new at::Tensor(call_operator("_c10d_functional::all_reduce", {*input, std::string(op), std::string(group)}));
  });
}

char* tm_reduce_scatter(at::Tensor* input, const char* op, int64_t world_size, const char* group, at::Tensor** out) {
  return catch_errors([&] {
    *out = new at::Tensor(call_operator("_c10d_functional::reduce_scatter_tensor",
                                        {*input, std::string(op), world_size, std::string(group)}));
  });
}

char* tm_all_gather(at::Tensor* input, int64_t world_size, const char* group, at::Tensor** out) {
  return catch_errors([&] {
    *out = new at::Tensor(
        call_operator("_c10d_functional::all_gather_into_tensor", {*input, world_size, std::string(group)}));
  });
}

char* tm_all_gather_into(at::Tensor* input, at::Tensor* output, int64_t world_size, const char* group, at::Tensor** out) {
  return catch_errors([&] {
    *out = new at::Tensor(call_operator("_c10d_functional::all_gather_into_tensor_out",
                                        {*input, world_size, std::string(group), *output}));
  });
}

char* tm_broadcast(at::Tensor* tensor, int64_t source_rank, const char* group, at::Tensor** out) {
  return catch_errors([&] {
    *out = new at::Tensor(call_operator("_c10d_functional::broadcast_", {*tensor, source_rank, std::string(group)}));
  });
}

char* tm_wait_tensor(at::Tensor* pending, at::Tensor** out) {
  return catch_errors([&] { *out = new at::Tensor(call_operator("_c10d_functional::wait_tensor", {*pending})); });
}

// Point-to-point communication has no functional form that takes a group's name. One of the two
// ranks sends first, because on a GPU both calls are on one stream.
char* tm_exchange(at::Tensor* tensor, int64_t peer, bool sends_first, const char* group) {
  return catch_errors([&] {
    auto process_group = c10d::resolve_process_group(group);
    std::vector<at::Tensor> sent{*tensor}, received{at::empty_like(*tensor)};
    auto send = [&] { process_group->send(sent, peer, 0)->wait(); };
    if (sends_first) send();
    process_group->recv(received, peer, 0)->wait();
    if (!sends_first) send();
    tensor->copy_(received[0]);
  });
}

}  // extern "C"
