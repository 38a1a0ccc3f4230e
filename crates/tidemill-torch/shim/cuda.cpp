// NVIDIA GPUs. Nothing of CUDA is needed to build this: libtorch's CUDA half is loaded where there
// is a driver, and reached through c10's interface for devices, or by its symbols.

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/env.h>

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "common.h"

namespace {

constexpr auto CUDA = c10::DeviceType::CUDA;

c10::Device cuda_device(int index) { return {CUDA, static_cast<c10::DeviceIndex>(index)}; }

// A function of libtorch's CUDA half.
template <typename F>
F* find_function(const char* symbol) {
  static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(library, "libtorch's CUDA half is not loaded");
  auto* found = reinterpret_cast<F*>(dlsym(library, symbol));
  TORCH_CHECK(found, dlerror());
  return found;
}

// The allocator of GPU memory. Before its first use it knows no device.
c10::DeviceAllocator* gpu_allocator() {
  at::globalContext().lazyInitDevice(CUDA);
  return c10::getDeviceAllocator(CUDA);
}

// at::cuda::CUDAGraph, whose header includes those of CUDA.
class Graph {
 public:
  // Graphs of one pool use its memory in turn: none of them keeps anything there from one of its
  // replays to the next.
  using Pool = std::pair<unsigned long long, unsigned long long>;

  static Pool new_pool() { return find_function<Pool()>("_ZN2at4cuda17graph_pool_handleEv")(); }

  Graph() { find_function<void(void*, bool)>("_ZN2at4cuda9CUDAGraphC1Eb")(memory_, /*keep_graph=*/false); }
  ~Graph() { find_function<void(void*)>("_ZN2at4cuda9CUDAGraphD1Ev")(memory_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void capture_begin(Pool pool) {
    // What other threads do, such as pinning memory for the next batch, does not disturb the
    // capture.
    constexpr int THREAD_LOCAL = 1;
    find_function<void(void*, Pool, int)>("_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode")(
        memory_, pool, THREAD_LOCAL);
  }
  void capture_end() { find_function<void(void*)>("_ZN2at4cuda9CUDAGraph11capture_endEv")(memory_); }
  void replay() { find_function<void(void*)>("_ZN2at4cuda9CUDAGraph6replayEv")(memory_); }

 private:
  // A CUDAGraph takes less than 200 bytes.
  alignas(16) char memory_[1024];
};

}  // namespace

extern "C" {

char* tm_load_cuda(bool* loaded) {
  *loaded = false;
  // Without a driver there is no GPU, and libtorch's CUDA half takes long to load.
  if (!dlopen("libcuda.so.1", RTLD_LAZY)) return nullptr;
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return strdup(dlerror());
  *loaded = true;
  // libtorch reads this before its first product, and takes products for deterministic only with it. It is
  // the workspace that Hopper has anyway.
  return catch_errors([] { c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/false); });
}

// A function of NVRTC or of the NVIDIA driver, by its name. PyTorch's wheels find NVRTC by a
// library that lies beside libtorch.
char* tm_cuda_symbol(const char* name, void** out) {
  return catch_errors([&] {
    static void* library = [] {
      Dl_info found;
      TORCH_CHECK(dladdr(reinterpret_cast<void*>(&c10::GetCPUAllocator), &found), "libc10 cannot be found");
      std::string path(found.dli_fname);
      path = path.substr(0, path.rfind('/') + 1) + "libcaffe2_nvrtc.so";
      void* library = dlopen(path.c_str(), RTLD_NOW);
      TORCH_CHECK(library, dlerror());
      return library;
    }();
    *out = dlsym(library, name);
    TORCH_CHECK(*out, dlerror());
  });
}

// Sets the current device of this thread, as libtorch's operations do for themselves; `previous`
// gets the one before.
char* tm_cuda_exchange_device(int index, int* previous) {
  return catch_errors([&] { *previous = c10::impl::VirtualGuardImpl(CUDA).exchangeDevice(cuda_device(index)).index(); });
}

// Sets whether scaled_dot_product_attention may use cuDNN; `previous` gets the setting before.
char* tm_exchange_cudnn_attention(bool enabled, bool* previous) {
  return catch_errors([&] {
    *previous = at::globalContext().userEnabledCuDNNSDP();
    at::globalContext().setSDPUseCuDNN(enabled);
  });
}

// Makes all operations deterministic, or fail; `previous` gets the settings before, one bit each.
char* tm_enter_deterministic(int* previous) {
  return catch_errors([&] {
    auto& context = at::globalContext();
    *previous = context.deterministicAlgorithms() | context.deterministicAlgorithmsWarnOnly() << 1 |
                context.deterministicCuDNN() << 2 | context.deterministicFillUninitializedMemory() << 3;
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicCuDNN(true);
    // This finds mistakes, and takes time.
    context.setDeterministicFillUninitializedMemory(false);
  });
}

char* tm_leave_deterministic(int previous) {
  return catch_errors([&] {
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(previous & 1, previous >> 1 & 1);
    context.setDeterministicCuDNN(previous >> 2 & 1);
    context.setDeterministicFillUninitializedMemory(previous >> 3 & 1);
  });
}

// Whether cuDNN tries algorithms for a convolution of a new shape, and how many (0: all).
char* tm_set_cudnn_benchmark(bool enabled, int limit) {
  return catch_errors([&] {
    at::globalContext().setBenchmarkCuDNN(enabled);
    if (enabled) at::globalContext().setBenchmarkLimitCuDNN(limit);
  });
}

// The CUstream that operations on a GPU go to.
char* tm_cuda_current_stream(int index, void** out) {
  return catch_errors([&] { *out = c10::impl::VirtualGuardImpl(CUDA).getStream(cuda_device(index)).native_handle(); });
}

// Makes a stream of libtorch's pool this thread's current stream; `previous` gets the id of the one
// before.
char* tm_cuda_enter_side_stream(int index, int64_t* previous) {
  return catch_errors([&] {
    c10::impl::VirtualGuardImpl guard(CUDA);
    guard.synchronizeDevice(static_cast<c10::DeviceIndex>(index));
    *previous = guard.exchangeStream(guard.getStreamFromGlobalPool(cuda_device(index), /*isHighPriority=*/false)).id();
  });
}

char* tm_cuda_leave_side_stream(int index, int64_t previous) {
  return catch_errors([&] {
    c10::impl::VirtualGuardImpl guard(CUDA);
    guard.synchronizeDevice(static_cast<c10::DeviceIndex>(index));
    guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, cuda_device(index), previous));
  });
}

// An event on the current stream: it is reached when the GPU has done all that it was told so far.
char* tm_cuda_event_record(int index, c10::Event** out) {
  return catch_errors([&] {
    auto event = std::make_unique<c10::Event>(CUDA);
    event->record(c10::impl::VirtualGuardImpl(CUDA).getStream(cuda_device(index)));
    *out = event.release();
  });
}

char* tm_cuda_event_synchronize(c10::Event* event) {
  return catch_errors([&] { event->synchronize(); });
}

void tm_cuda_event_delete(c10::Event* event) { delete event; }

char* tm_cuda_empty_cache() {
  return catch_errors([] { gpu_allocator()->emptyCache(); });
}

// The most bytes that tensors on a GPU have taken at a time so far.
char* tm_cuda_max_memory_allocated(int index, int64_t* out) {
  return catch_errors([&] {
    constexpr auto ALL = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = gpu_allocator()->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    *out = stats.allocated_bytes[ALL].peak;
  });
}

char* tm_cuda_reset_peak_memory(int index) {
  return catch_errors([&] { gpu_allocator()->resetPeakStats(static_cast<c10::DeviceIndex>(index)); });
}

// The bytes of tensors on a GPU now, and of its memory.
char* tm_cuda_memory(int index, int64_t* allocated, int64_t* total) {
  return catch_errors([&] {
    constexpr auto ALL = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto device = static_cast<c10::DeviceIndex>(index);
    auto* allocator = gpu_allocator();
    *allocated = allocator->getDeviceStats(device).allocated_bytes[ALL].current;
    *total = static_cast<int64_t>(allocator->getMemoryInfo(device).second);
  });
}

char* tm_cuda_graph_new_pool(unsigned long long* out) {
  return catch_errors([&] { std::tie(out[0], out[1]) = Graph::new_pool(); });
}

// From now on, work that this thread gives to the GPU is captured and not done.
char* tm_cuda_graph_capture_begin(int index, const unsigned long long* pool, Graph** out) {
  return catch_errors([&] {
    c10::impl::VirtualGuardImpl(CUDA).synchronizeDevice(static_cast<c10::DeviceIndex>(index));
    // The graph allocates from its own pool, so what is cached outside of it would only take room.
    gpu_allocator()->emptyCache();
    auto graph = std::make_unique<Graph>();
    graph->capture_begin({pool[0], pool[1]});
    *out = graph.release();
  });
}

char* tm_cuda_graph_capture_end(Graph* graph) {
  return catch_errors([&] { graph->capture_end(); });
}

char* tm_cuda_graph_replay(Graph* graph) {
  return catch_errors([&] { graph->replay(); });
}

void tm_cuda_graph_delete(Graph* graph) {
  // The destructor fails if the GPU has failed; the next call on the GPU reports that.
  free(catch_errors([&] { delete graph; }));
}

}  // extern "C"
