// A GPU that computes nothing: the functions of CUDA's runtime, driver, cuBLAS and cuDNN that libtorch calls (those that are not
// here are made by __init__.py, and do nothing). Work is counted and not done; memory is reserved and never touched; what is
// copied to the host is 1.0 again and again, a single number 0.0. Captures have CUDA's rules: what a stream that is captured may not
// do fails and is a violation, what goes to another stream meanwhile has escaped the capture.
//
// NULL_GPU_REPORT names a file that gets the counts so far, as a line of JSON, whenever something is copied to the host, and when the
// process ends.

#include <driver_types.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace {

enum Answer { OK = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_PERMITTED = 900, UNMATCHED = 901, ISOLATION = 905, CAPTURED_EVENT = 907 };
enum Mode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

// Of the calling thread.
thread_local int current_device = 0;

struct Stream {
  int device = current_device;
};
struct Event {
  bool recorded = false, captured = false;
};
struct Graph {
  long kernels = 0;
};
// Of cuBLAS or cuDNN.
struct Handle {
  Stream* stream = nullptr;
};

constexpr size_t MEMORY = size_t(141) << 30;

std::mutex mutex;
std::map<const void*, std::string> names;
// Of kernels that the driver has loaded, the device.
std::map<const void*, int> loaded_on;
std::map<char*, size_t> blocks;
size_t used = 0;

struct Counts {
  std::map<std::string, long> kernels;
  long launches = 0, captures = 0, captured = 0, escaped = 0, replays = 0, replayed = 0, violations = 0, waits = 0, on_first = 0;
  size_t peak_bytes = 0;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  // Adds a line to the report; of kernels the last one has the names.
  void write(bool last) const {
    const char* path = getenv("NULL_GPU_REPORT");
    FILE* file = path && launches ? fopen(path, "a") : nullptr;
    if (!file) return;
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    fprintf(file,
            "{\"launches\": %ld, \"captures\": %ld, \"captured\": %ld, \"escaped\": %ld, \"replays\": %ld, \"replayed\": %ld, "
            "\"violations\": %ld, \"waits\": %ld, \"on_first\": %ld, \"peak_bytes\": %zu, \"seconds\": %f, \"kernels\": {",
            launches, captures, captured, escaped, replays, replayed, violations, waits, on_first, peak_bytes, seconds);
    const char* separator = "";
    for (const auto& [name, count] : kernels) {
      if (!last) break;
      fprintf(file, "%s\"%s\": %ld", separator, name.c_str(), count);
      separator = ", ";
    }
    fprintf(file, "}}\n");
    fclose(file);
  }
  ~Counts() { write(true); }
} counts;

// The one capture that there may be.
Stream* capturing = nullptr;
std::set<Stream*> captured_streams;
std::thread::id began_on;
int began_as = GLOBAL;
long captured_kernels = 0;

thread_local int thread_mode = GLOBAL;
thread_local int last_error = OK;

bool is_captured(Stream* stream) { return capturing && captured_streams.count(stream); }

int refuse(const char* what, int why) {
  ++counts.violations;
  fprintf(stderr, "null GPU: %s is not permitted, or not in a capture\n", what);
  return last_error = why;
}

// Of a call that captures do not allow.
int unsafe(const char* what) {
  std::lock_guard lock(mutex);
  bool concerns = began_as == GLOBAL || (began_as == THREAD_LOCAL && std::this_thread::get_id() == began_on);
  return capturing && thread_mode != RELAXED && concerns ? refuse(what, NOT_PERMITTED) : OK;
}

// Of a call that waits for a stream.
int wait(const char* what, bool captured) {
  if (int answer = unsafe(what)) return answer;
  std::lock_guard lock(mutex);
  if (captured) return refuse(what, NOT_PERMITTED);
  ++counts.waits;
  return OK;
}

int launch(const std::string& name, Stream* stream) {
  std::lock_guard lock(mutex);
  if (stream && stream->device != current_device) return refuse("what is on another device's stream", NOT_PERMITTED);
  ++counts.launches;
  counts.on_first += current_device == 0;
  ++counts.kernels[name];
  if (is_captured(stream)) {
    ++counts.captured;
    ++captured_kernels;
  } else if (capturing) {
    ++counts.escaped;
    fprintf(stderr, "null GPU: %s is on another stream than what is captured\n", name.c_str());
  }
  return OK;
}

int launch_kernel(const void* kernel, Stream* stream) {
  std::unique_lock lock(mutex);
  auto found = names.find(kernel);
  std::string name = found == names.end() ? "unknown" : found->second;
  lock.unlock();
  return launch(name, stream);
}

bool is_on_device(const void* at) {
  auto after = blocks.upper_bound((char*)at);
  if (after == blocks.begin()) return false;
  auto block = std::prev(after);
  return (char*)at < block->first + block->second;
}

void copy(void* to, const void* from, size_t bytes) {
  std::lock_guard lock(mutex);
  if (is_on_device(to)) return;
  if (!is_on_device(from)) {
    memcpy(to, from, bytes);
    return;
  }
  counts.write(false);
  float value = bytes > sizeof(float);
  memset(to, 0, bytes);
  for (size_t i = 0; i + sizeof value <= bytes; i += sizeof value) memcpy((char*)to + i, &value, sizeof value);
}

template <typename T>
int make(T** out) {
  *out = new T;
  return OK;
}

// Something for whoever looks at no more than its address.
int make_any(void** out) {
  *out = calloc(1, 256);
  return OK;
}

}  // namespace

extern "C" {

// Devices, of which NULL_GPU_DEVICES says how many: H200s, for which libtorch has attention from cuDNN.
int cudaGetDeviceCount(int* count) {
  const char* given = getenv("NULL_GPU_DEVICES");
  return *count = given ? atoi(given) : 1, OK;
}
int cudaGetDevice(int* device) { return *device = current_device, OK; }
int cudaSetDevice(int device) { return current_device = device, OK; }
int cudaDriverGetVersion(int* version) { return *version = 13000, OK; }
int cudaRuntimeGetVersion(int* version) { return *version = 13000, OK; }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, OK; }
int cudaDeviceGetPCIBusId(char* id, int room, int) { return snprintf(id, room, "0000:00:00.0"), OK; }

int cudaGetDeviceProperties(cudaDeviceProp* device, int) {
  memset(device, 0, sizeof *device);
  strcpy(device->name, "a GPU that computes nothing");
  device->totalGlobalMem = MEMORY;
  device->major = 9;
  device->multiProcessorCount = 132;
  device->warpSize = 32;
  device->maxThreadsPerBlock = 1024;
  device->maxThreadsPerMultiProcessor = 2048;
  device->maxBlocksPerMultiProcessor = 32;
  device->sharedMemPerBlock = 48 << 10;
  device->sharedMemPerBlockOptin = 227 << 10;
  device->sharedMemPerMultiprocessor = 228 << 10;
  device->regsPerBlock = device->regsPerMultiprocessor = 65536;
  device->l2CacheSize = 50 << 20;
  device->textureAlignment = 512;
  device->unifiedAddressing = 1;
  const int threads[] = {1024, 1024, 64}, blocks[] = {2147483647, 65535, 65535};
  memcpy(device->maxThreadsDim, threads, sizeof threads);
  memcpy(device->maxGridSize, blocks, sizeof blocks);
  return OK;
}

int cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    default: *value = 1;
  }
  return OK;
}

int cudaGetLastError() { return std::exchange(last_error, OK); }
int cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(int) { return "cudaError"; }
const char* cudaGetErrorString(int error) {
  return error == OUT_OF_MEMORY ? "out of memory" : error == OK ? "no error" : "operation not permitted when stream is capturing";
}

// Memory.
int cudaMalloc(void** out, size_t bytes) {
  if (int answer = unsafe("cudaMalloc")) return answer;
  std::lock_guard lock(mutex);
  if (used + bytes > MEMORY) return last_error = OUT_OF_MEMORY;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return last_error = OUT_OF_MEMORY;
  blocks[(char*)at] = bytes;
  used += bytes;
  counts.peak_bytes = std::max(counts.peak_bytes, used);
  *out = at;
  return OK;
}
int cudaFree(void* at) {
  if (int answer = unsafe("cudaFree")) return answer;
  std::lock_guard lock(mutex);
  auto block = blocks.find((char*)at);
  if (block == blocks.end()) return OK;
  munmap(at, block->second);
  used -= block->second;
  blocks.erase(block);
  return OK;
}
int cudaHostAlloc(void** out, size_t bytes, unsigned) {
  if (int answer = unsafe("cudaHostAlloc")) return answer;
  *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return OK;
}
int cudaFreeHost(void* at) { return free(at), OK; }
int cudaMemGetInfo(size_t* left, size_t* all) { return *all = MEMORY, *left = MEMORY - used, OK; }
int cudaPointerGetAttributes(cudaPointerAttributes* found, const void* at) {
  std::lock_guard lock(mutex);
  memset(found, 0, sizeof *found);
  found->type = is_on_device(at) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return OK;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  if (int answer = wait("cudaMemcpy", false)) return answer;
  return copy(to, from, bytes), OK;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, Stream* stream) {
  launch("memcpy", stream);
  return copy(to, from, bytes), OK;
}
int cudaMemsetAsync(void*, int, size_t, Stream* stream) { return launch("memset", stream); }

// Streams and events.
int cudaStreamCreateWithPriority(Stream** out, unsigned, int) { return make(out); }
int cudaStreamQuery(Stream* stream) { return is_captured(stream) ? wait("cudaStreamQuery", true) : unsafe("cudaStreamQuery"); }
int cudaStreamSynchronize(Stream* stream) { return wait("cudaStreamSynchronize", is_captured(stream)); }
int cudaDeviceSynchronize() { return wait("cudaDeviceSynchronize", capturing); }
int cudaEventCreate(Event** out) { return make(out); }
int cudaEventCreateWithFlags(Event** out, unsigned) { return make(out); }
int cudaEventDestroy(Event* event) { return delete event, OK; }
int cudaEventRecord(Event* event, Stream* stream) {
  std::lock_guard lock(mutex);
  *event = {true, is_captured(stream)};
  return OK;
}
int cudaEventRecordWithFlags(Event* event, Stream* stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventQuery(Event* event) {
  if (capturing && event->captured) return refuse("cudaEventQuery of what is captured", CAPTURED_EVENT);
  return unsafe("cudaEventQuery");
}
int cudaEventSynchronize(Event* event) { return wait("cudaEventSynchronize", capturing && event->captured); }
int cudaEventElapsedTime(float* ms, Event*, Event*) { return *ms = 1, OK; }
int cudaStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  std::lock_guard lock(mutex);
  if (capturing && event->captured) captured_streams.insert(stream);
  bool from_outside = is_captured(stream) && event->recorded && !event->captured;
  return from_outside ? refuse("cudaStreamWaitEvent for what is not", ISOLATION) : OK;
}

// Captures.
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
  began_on = std::this_thread::get_id();
  began_as = mode;
  captured_kernels = 0;
  ++counts.captures;
  return OK;
}
int cudaStreamEndCapture(Stream* stream, Graph** out) {
  std::lock_guard lock(mutex);
  if (capturing != stream) return refuse("cudaStreamEndCapture", UNMATCHED);
  capturing = nullptr;
  captured_streams.clear();
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

// Kernels.
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  names[host] = name;
}
int __cudaGetKernel(const void** kernel, const void* host) { return *kernel = host, OK; }
int __cudaLaunchKernel(void* kernel, dim3, dim3, void**, size_t, Stream* stream) { return launch_kernel(kernel, stream); }
int cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void**) {
  return launch_kernel(kernel, (Stream*)how->stream);
}
thread_local cudaLaunchConfig_t configured;
unsigned __cudaPushCallConfiguration(dim3 blocks, dim3 threads, size_t shared, void* stream) {
  return configured = {blocks, threads, shared, (cudaStream_t)stream}, OK;
}
int __cudaPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, void* stream) {
  *blocks = configured.gridDim;
  *threads = configured.blockDim;
  *shared = configured.dynamicSmemBytes;
  *(cudaStream_t*)stream = configured.stream;
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

// cuBLAS.
int cublasCreate_v2(Handle** out) { return make(out); }
int cublasSetStream_v2(Handle* handle, Stream* stream) { return handle->stream = stream, OK; }
int cublasGetMathMode(Handle*, int* mode) { return *mode = 0, OK; }
int cublasGetPointerMode_v2(Handle*, int* mode) { return *mode = 0, OK; }
int cublasGemmEx(Handle* handle) { return launch("cublasGemmEx", handle->stream); }
int cublasGemmStridedBatchedEx(Handle* handle) { return launch("cublasGemmStridedBatchedEx", handle->stream); }
int cublasSgemm_v2(Handle* handle) { return launch("cublasSgemm", handle->stream); }
int cublasSgemmStridedBatched(Handle* handle) { return launch("cublasSgemmStridedBatched", handle->stream); }
int cublasLtMatmulDescCreate(void** out, int, int) { return make_any(out); }
int cublasLtMatrixLayoutCreate(void** out) { return make_any(out); }
int cublasLtMatmulPreferenceCreate(void** out) { return make_any(out); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* count) {
  return *count = 1, OK;
}
int cublasLtMatmul(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, size_t,
                   Stream* stream) {
  return launch("cublasLtMatmul", stream);
}

// cuDNN: its first plan does for everything.
int cudnnCreate(Handle** out) { return make(out); }
int cudnnSetStream(Handle* handle, Stream* stream) { return handle->stream = stream, OK; }
int cudnnGetStream(Handle* handle, Stream** stream) { return *stream = handle->stream, OK; }
size_t cudnnGetVersion() { return 91900; }
size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(int) { return "a cuDNN error"; }
void cudnnGetLastErrorString(char* text, size_t room) {
  if (room) *text = 0;
}
int cudnnBackendCreateDescriptor(int, void** out) { return make_any(out); }
int cudnnBackendDestroyDescriptor(void* descriptor) { return free(descriptor), OK; }
int cudnnBackendGetAttribute(void*, int, int type, int64_t wanted, int64_t* count, void* out) {
  constexpr int INT64 = 3, INT32 = 23;
  if (count) *count = 1;
  if (out && wanted > 0 && type == INT64) memset(out, 0, 8);
  if (out && wanted > 0 && type == INT32) memset(out, 0, 4);
  return OK;
}
int cudnnBackendExecute(Handle* handle, void*, void*) { return launch("cudnnBackendExecute", handle->stream); }

// The driver.
int cuDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
int cuCtxGetCurrent(void** context) {
  static int one;
  return *context = &one, OK;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, OK; }
// NVRTC looks for it, and does without.
int cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }
struct Module {
  int device = current_device;
};
// Of a GPU that takes no kernels from elsewhere, with NULL_GPU_NO_MODULES.
int cuModuleLoadData(Module** out, const void*) { return getenv("NULL_GPU_NO_MODULES") ? NOT_FOUND : make(out); }
int cuModuleGetFunction(void** out, Module* module, const char* name) {
  std::lock_guard lock(mutex);
  make_any(out);
  loaded_on[*out] = module->device;
  names[*out] = name;
  return OK;
}
int cuLaunchKernel(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream* stream) {
  std::unique_lock lock(mutex);
  if (loaded_on[kernel] != current_device) return refuse("another device's kernel", NOT_PERMITTED);
  lock.unlock();
  return launch_kernel(kernel, stream);
}
int cuGetErrorString(int, const char** text) { return *text = "an error", OK; }

}  // extern "C"
