// What concerns NVIDIA GPUs. Nothing of CUDA is needed to build it: libtorch's CUDA half is loaded where there is a driver, and
// reached through c10's interface for devices, or by its symbols. Functions answer as those of shim.cpp.

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>

#include "guarded.h"

namespace {

constexpr auto CUDA = c10::DeviceType::CUDA;

c10::Device device(int index) { return {CUDA, static_cast<c10::DeviceIndex>(index)}; }

// A function of libtorch's CUDA half.
template <typename F>
F* function(const char* symbol) {
  static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(library, "libtorch's CUDA half is not loaded");
  auto* found = reinterpret_cast<F*>(dlsym(library, symbol));
  TORCH_CHECK(found, dlerror());
  return found;
}

// at::cuda::CUDAGraph, whose header asks for those of CUDA.
class Graph {
 public:
  // Graphs of one pool use its memory in turn: none of them keeps anything there from one of its replays to the next.
  using Pool = std::pair<unsigned long long, unsigned long long>;

  static Pool new_pool() { return function<Pool()>("_ZN2at4cuda17graph_pool_handleEv")(); }

  Graph() { function<void(void*, bool)>("_ZN2at4cuda9CUDAGraphC1Eb")(memory_, /*keep_graph=*/false); }
  ~Graph() { function<void(void*)>("_ZN2at4cuda9CUDAGraphD1Ev")(memory_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin(Pool pool) {
    // What other threads do, such as pinning memory for the next batch, does not disturb the recording.
    constexpr int THREAD_LOCAL = 1;
    function<void(void*, Pool, int)>("_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode")(memory_, pool,
                                                                                                                 THREAD_LOCAL);
  }
  void end() { function<void(void*)>("_ZN2at4cuda9CUDAGraph11capture_endEv")(memory_); }
  void replay() { function<void(void*)>("_ZN2at4cuda9CUDAGraph6replayEv")(memory_); }

 private:
  // It takes less than 200 bytes.
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
  return nullptr;
}

// A function of NVRTC or of the NVIDIA driver, by its name. PyTorch's wheels know where NVRTC is by a library beside libtorch.
char* tm_gpu_function(const char* name, void** out) {
  return guarded([&] {
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

// Makes a GPU the one that this thread's calls of CUDA are for, as libtorch's operations do for themselves; gives the one before.
char* tm_gpu_enter(int index, int* before) {
  return guarded([&] { *before = c10::impl::VirtualGuardImpl(CUDA).exchangeDevice(device(index)).index(); });
}

// Whether attention may be cuDNN's; gives whether it might before.
char* tm_attention_by_cudnn(bool may, bool* before) {
  return guarded([&] {
    *before = at::globalContext().userEnabledCuDNNSDP();
    at::globalContext().setSDPUseCuDNN(may);
  });
}

// The CUstream that operations on a GPU go to.
char* tm_gpu_stream(int index, void** out) {
  return guarded([&] { *out = c10::impl::VirtualGuardImpl(CUDA).getStream(device(index)).native_handle(); });
}

// Has this thread's operations on a GPU go to a stream of its own; gives the one that they went to before.
char* tm_gpu_own_stream(int index, int64_t* before) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(CUDA);
    guard.synchronizeDevice(static_cast<c10::DeviceIndex>(index));
    *before = guard.exchangeStream(guard.getStreamFromGlobalPool(device(index), /*isHighPriority=*/false)).id();
  });
}

char* tm_gpu_back_to_stream(int index, int64_t before) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(CUDA);
    guard.synchronizeDevice(static_cast<c10::DeviceIndex>(index));
    guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, device(index), before));
  });
}

// What the GPU has to do once all that it has been told so far is done.
char* tm_gpu_mark(int index, c10::Event** out) {
  return guarded([&] {
    auto event = std::make_unique<c10::Event>(CUDA);
    event->record(c10::impl::VirtualGuardImpl(CUDA).getStream(device(index)));
    *out = event.release();
  });
}

char* tm_gpu_reach(c10::Event* mark) {
  return guarded([&] { mark->synchronize(); });
}

void tm_gpu_drop_mark(c10::Event* mark) { delete mark; }

// Gives back what tensors that are gone have left.
char* tm_gpu_empty_cache() {
  return guarded([] { c10::getDeviceAllocator(CUDA)->emptyCache(); });
}

// The most bytes that tensors on a GPU have taken at a time so far.
char* tm_gpu_peak_memory(int index, int64_t* out) {
  return guarded([&] {
    constexpr auto ALL = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = c10::getDeviceAllocator(CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    *out = stats.allocated_bytes[ALL].peak;
  });
}

char* tm_graph_new_pool(unsigned long long* out) {
  return guarded([&] { std::tie(out[0], out[1]) = Graph::new_pool(); });
}

// What this thread has the GPU do from now on is recorded, and not done.
char* tm_graph_begin(int index, const unsigned long long* pool, Graph** out) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl(CUDA).synchronizeDevice(static_cast<c10::DeviceIndex>(index));
    // The graph has memory of its own.
    c10::getDeviceAllocator(CUDA)->emptyCache();
    auto graph = std::make_unique<Graph>();
    graph->begin({pool[0], pool[1]});
    *out = graph.release();
  });
}

char* tm_graph_end(Graph* graph) {
  return guarded([&] { graph->end(); });
}

char* tm_graph_replay(Graph* graph) {
  return guarded([&] { graph->replay(); });
}

void tm_graph_drop(Graph* graph) {
  // It fails where the GPU has.
  free(guarded([&] { delete graph; }));
}

}  // extern "C"
