// The rest of what tch does not reach on a CPU: fused operations, the thread pool, the allocator,
// the profiler, and tensors that are shared with Python.

#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "common.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>

namespace {

// No CPU and no GPU has memory at this address. From nullptr an offset may lead to some.
void* const NO_MEMORY = reinterpret_cast<void*>(0xdead000000000000);

using Allocate = void* (*)(size_t bytes);
using Free = void (*)(void* memory);
using UsableSize = size_t (*)(const void* memory);

// Takes the memory of tensors on the CPU from functions of Rust's, and tells the profiler of it, as
// libtorch's own allocators do.
struct ForwardingAllocator : at::Allocator {
  // A deleter knows nothing but the memory, so there is one allocator.
  static ForwardingAllocator& instance() {
    // Never freed: tensors may outlive everything else in the process.
    static auto* allocator = new ForwardingAllocator;
    return *allocator;
  }

  at::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : allocate_memory(bytes);
    TORCH_CHECK(memory || bytes == 0, "not enough memory for a tensor of ", bytes, " bytes");
    if (memory) report(memory, static_cast<int64_t>(usable_size(memory)));
    return {memory, memory, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  static void release(void* memory) {
    if (!memory) return;
    instance().report(memory, -static_cast<int64_t>(instance().usable_size(memory)));
    instance().free_memory(memory);
  }

  void report(void* memory, int64_t bytes) {
    int64_t total = total_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (c10::memoryProfilingEnabled()) {
      c10::reportMemoryUsageToProfiler(memory, bytes, static_cast<size_t>(total), 0, c10::Device(c10::DeviceType::CPU));
    }
  }

  Allocate allocate_memory = nullptr;
  Free free_memory = nullptr;
  UsableSize usable_size = nullptr;
  std::atomic<int64_t> total_bytes{0};
};

}  // namespace

extern "C" {

void tm_free_error(char* text) { free(text); }

char* tm_free_storage(at::Tensor* tensor) {
  return catch_errors([&] {
    auto* storage = tensor->storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(NO_MEMORY, tensor->device()));
    storage->set_nbytes(0);
  });
}

char* tm_allocate_storage(at::Tensor* tensor) {
  return catch_errors([&] {
    auto* storage = tensor->storage().unsafeGetStorageImpl();
    size_t bytes = static_cast<size_t>(tensor->numel()) * tensor->element_size();
    if (storage->nbytes() >= bytes) return;
    c10::OptionalDeviceGuard device(tensor->device());
    storage->set_data_ptr_noswap(c10::GetAllocator(tensor->device().type())->allocate(bytes));
    storage->set_nbytes(bytes);
  });
}

char* tm_fused_adamw(at::Tensor* param, at::Tensor* grad, at::Tensor* exp_avg, at::Tensor* exp_avg_sq, at::Tensor* step,
                     at::Tensor* lr, double beta1, double beta2, double weight_decay, double eps, at::Tensor* grad_scale,
                     at::Tensor* skip) {
  return catch_errors([&] {
    at::NoGradGuard no_grad;
    std::optional<at::Tensor> found_inf;
    if (skip) found_inf = *skip;
    at::_fused_adamw_({*param}, {*grad}, {*exp_avg}, {*exp_avg_sq}, {}, {*step}, *lr, beta1, beta2, weight_decay, eps,
                      /*amsgrad=*/false, /*maximize=*/false, *grad_scale, found_inf);
  });
}

// L2 norms of `tensors`, stacked, f32.
char* tm_foreach_norm(at::Tensor** tensors, size_t count, at::Tensor** out) {
  return catch_errors([&] {
    at::NoGradGuard no_grad;
    *out = new at::Tensor(at::stack(at::_foreach_norm(to_vector(tensors, count), /*ord=*/2, at::kFloat)));
  });
}

// The operator that torch.compile uses for linear layers. It has no function in libtorch's headers,
// and no gradient.
char* tm_onednn_linear(at::Tensor* x, at::Tensor* weight, at::Tensor* bias, at::Tensor** out) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                            c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  return catch_errors([&] {
    static auto linear =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Linear>();
    at::NoGradGuard no_grad;
    std::optional<at::Tensor> optional_bias;
    if (bias) optional_bias = *bias;
    *out = new at::Tensor(
        linear.call(*x, *weight, optional_bias, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt));
  });
}

// Calls `call` for ranges of 0 .. count on libtorch's own threads. at::parallel_for is a template
// that is compiled into libtorch's operations; this reaches the same threads by an iteration over a
// byte tensor. Only the addresses of its elements are used.
char* tm_parallel_for(const char* name, size_t count, void* context, void (*call)(void* context, size_t begin, size_t end)) {
  return catch_errors([&] {
    RECORD_FUNCTION(name, std::vector<c10::IValue>());
    auto indices = at::empty({static_cast<int64_t>(count)}, at::kByte);
    auto iterator = at::TensorIterator::nullary_op(indices);
    auto* first = static_cast<char*>(indices.data_ptr());
    iterator.for_each(
        [&](char** data, const int64_t*, int64_t length) {
          size_t begin = data[0] - first;
          call(context, begin, begin + length);
        },
        /*grain_size=*/1);
  });
}

void tm_set_cpu_allocator(Allocate allocate, Free free, UsableSize usable_size) {
  auto& allocator = ForwardingAllocator::instance();
  allocator.allocate_memory = allocate, allocator.free_memory = free, allocator.usable_size = usable_size;
  at::SetCPUAllocator(&allocator, /*priority=*/UINT8_MAX);
}

// The tensor that Python knows by the address of its TensorImpl.
char* tm_tensor_from_impl(void* impl, at::Tensor** out) {
  return catch_errors([&] {
    auto* tensor = static_cast<at::TensorImpl*>(impl);
    *out = new at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(tensor));
  });
}

// A copy in page-locked memory. tch's own call needs a device, and libtorch warns about that
// argument.
char* tm_pin_memory(at::Tensor* tensor, at::Tensor** out) {
  return catch_errors([&] { *out = new at::Tensor(tensor->pin_memory()); });
}

char* tm_to_dlpack(at::Tensor* tensor, DLManagedTensor** out) {
  return catch_errors([&] { *out = at::toDLPack(*tensor); });
}

char* tm_profiler_start(bool with_cuda) {
  return catch_errors([&] {
    namespace profiler = torch::autograd::profiler;
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> activities{ActivityType::CPU};
    if (with_cuda) activities.insert(ActivityType::CUDA);
    torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                 /*report_input_shapes=*/true, /*profile_memory=*/true);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities,
                             {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  });
}

// Begins a range with this name in the trace; null if no profiler is running.
void* tm_profiler_enter(const char* name) {
  auto range = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!range->isActive()) return nullptr;
  range->before(name);
  return range.release();
}

void tm_profiler_leave(void* range) { delete static_cast<at::RecordFunction*>(range); }

// Writes the trace to `path`, or drops it if `path` is null.
char* tm_profiler_stop(const char* path) {
  return catch_errors([&] {
    auto trace = torch::autograd::profiler::disableProfiler();
    if (path) trace->save(path);
  });
}

}  // extern "C"
