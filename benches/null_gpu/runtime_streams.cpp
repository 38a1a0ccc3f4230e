// CUDA's runtime: streams, events, captures and kernels.

#include <driver_types.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "fake_device.h"

extern "C" {

// Streams and events
int cudaStreamCreateWithPriority(Stream** out, unsigned, int priority) {
  *out = new Stream{.priority = priority};
  return OK;
}
int cudaStreamQuery(Stream* stream) { return is_captured(stream) ? count_wait("cudaStreamQuery", true) : check_unsafe_call("cudaStreamQuery"); }
int cudaStreamSynchronize(Stream* stream) { return count_wait("cudaStreamSynchronize", is_captured(stream)); }
int cudaDeviceSynchronize() {
  // Microseconds that the device takes for each launch, if it is not to be done at once.
  static std::atomic<long> done = 0;
  if (const char* busy = getenv("NULL_GPU_LAUNCH_US")) {
    long launches = counts.launches;
    std::this_thread::sleep_for(std::chrono::microseconds(atoi(busy) * (launches - done.exchange(launches))));
  }
  return count_wait("cudaDeviceSynchronize", capturing);
}
int cudaEventCreate(Event** out) { return create(out); }
int cudaEventCreateWithFlags(Event** out, unsigned) { return create(out); }
int cudaEventDestroy(Event* event) { return delete event, OK; }
int cudaEventRecord(Event* event, Stream* stream) {
  std::lock_guard lock(mutex);
  *event = {true, is_captured(stream) ? counts.captures : 0, stream ? stream->before : Order()};
  return OK;
}
int cudaEventRecordWithFlags(Event* event, Stream* stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventQuery(Event* event) {
  if (is_captured(event)) return refuse("cudaEventQuery of a captured event", CAPTURED_EVENT);
  return check_unsafe_call("cudaEventQuery");
}
int cudaEventSynchronize(Event* event) { return count_wait("cudaEventSynchronize", is_captured(event)); }
int cudaEventElapsedTime(float* ms, Event*, Event*) { return *ms = 1, OK; }
int cudaStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  std::lock_guard lock(mutex);
  if (is_captured(event)) {
    captured_streams.insert(stream);
    for (auto [other, launches] : event->before) stream->before[other] = std::max(stream->before[other], launches);
  }
  bool from_outside = is_captured(stream) && event->recorded && !is_captured(event);
  return from_outside ? refuse("cudaStreamWaitEvent for an event that is not captured", ISOLATION) : OK;
}

// Captures and graphs
int cudaThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, thread_mode), OK; }
int cudaStreamIsCapturing(Stream* stream, int* status) {
  std::lock_guard lock(mutex);
  return *status = is_captured(stream), OK;
}
int cudaStreamGetCaptureInfo(Stream* stream, int* status, unsigned long long* id, void** graph, const void** nodes,
                             const void** edges, size_t* count) {
  std::lock_guard lock(mutex);
  *status = is_captured(stream);
  if (id) *id = counts.captures;
  for (const void** out : {(const void**)graph, nodes, edges})
    if (out) *out = nullptr;
  if (count) *count = 0;
  return OK;
}
int cudaStreamBeginCapture(Stream* stream, int mode) {
  std::lock_guard lock(mutex);
  if (!stream || capturing) return refuse("cudaStreamBeginCapture", NOT_PERMITTED);
  capturing = stream;
  captured_streams = {stream};
  capture_thread = std::this_thread::get_id();
  capture_mode = mode;
  captured_kernels = 0;
  ++counts.captures;
  return OK;
}
int cudaStreamEndCapture(Stream* stream, Graph** out) {
  std::lock_guard lock(mutex);
  if (capturing != stream) return refuse("cudaStreamEndCapture", UNMATCHED);
  bool is_joined = true;
  for (Stream* other : captured_streams) is_joined &= other->before[other] <= stream->before[other];
  capturing = nullptr;
  captured_streams.clear();
  if (!is_joined) return refuse("cudaStreamEndCapture before work on other streams has ended", UNJOINED);
  *out = new Graph{captured_kernels};
  return OK;
}
int cudaGraphInstantiateWithFlags(Graph** out, Graph* graph, unsigned long long) { return *out = new Graph(*graph), OK; }
int cudaGraphLaunch(Graph* graph, Stream* stream) {
  if (is_captured(stream)) return refuse("cudaGraphLaunch", NOT_PERMITTED);
  ++counts.replays;
  counts.replayed += graph->kernels;
  return OK;
}
int cudaGraphGetNodes(Graph* graph, void**, size_t* count) { return *count = graph->kernels, OK; }
int cudaGraphDestroy(Graph* graph) { return delete graph, OK; }
int cudaGraphExecDestroy(Graph* graph) { return delete graph, OK; }

// Kernels
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  kernel_names[host] = name;
}
int __cudaGetKernel(const void** kernel, const void* host) { return *kernel = host, OK; }
int __cudaLaunchKernel(void* kernel, dim3, dim3, void**, size_t, Stream* stream) { return launch_kernel(kernel, stream); }
int cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return launch_kernel(kernel, (Stream*)config->stream);
}
static thread_local cudaLaunchConfig_t pushed_config;
unsigned __cudaPushCallConfiguration(dim3 blocks, dim3 threads, size_t shared, void* stream) {
  return pushed_config = {blocks, threads, shared, (cudaStream_t)stream}, OK;
}
int __cudaPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, void* stream) {
  *blocks = pushed_config.gridDim;
  *threads = pushed_config.blockDim;
  *shared = pushed_config.dynamicSmemBytes;
  *(cudaStream_t*)stream = pushed_config.stream;
  return OK;
}
int cudaFuncGetAttributes(cudaFuncAttributes* kernel, const void*) {
  memset(kernel, 0, sizeof *kernel);
  kernel->maxThreadsPerBlock = 1024;
  kernel->numRegs = 32;
  kernel->binaryVersion = kernel->ptxVersion = 80;
  kernel->maxDynamicSharedSizeBytes = 227 << 10;
  return OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  return *blocks = 2, OK;
}
static int do_nothing() { return OK; }
int cudaGetDriverEntryPointByVersion(const char*, void** out, unsigned, unsigned long long, int* found) {
  *out = (void*)do_nothing;
  if (found) *found = OK;
  return OK;
}

}  // extern "C"
