// CUDA's runtime: devices, errors and memory.

#include <driver_types.h>
#include <sys/mman.h>

#include "fake_device.h"

extern "C" {

// Devices: H200s, for which libtorch takes attention from cuDNN. NULL_GPU_DEVICES is their number.
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
  device->totalGlobalMem = total_memory();
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

// Memory
int cudaMalloc(void** out, size_t bytes) {
  if (int error = check_unsafe_call("cudaMalloc")) return error;
  std::lock_guard lock(mutex);
  if (used_memory + bytes > total_memory()) return last_error = OUT_OF_MEMORY;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return last_error = OUT_OF_MEMORY;
  blocks[(char*)at] = bytes;
  used_memory += bytes;
  counts.peak_bytes = std::max(counts.peak_bytes, used_memory);
  *out = at;
  return OK;
}
int cudaFree(void* at) {
  if (int error = check_unsafe_call("cudaFree")) return error;
  std::lock_guard lock(mutex);
  auto block = blocks.find((char*)at);
  if (block == blocks.end()) return OK;
  munmap(at, block->second);
  used_memory -= block->second;
  blocks.erase(block);
  return OK;
}
int cudaHostAlloc(void** out, size_t bytes, unsigned) {
  if (int error = check_unsafe_call("cudaHostAlloc")) return error;
  *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return OK;
}
int cudaFreeHost(void* at) { return free(at), OK; }
int cudaMemGetInfo(size_t* left, size_t* all) { return *all = total_memory(), *left = total_memory() - used_memory, OK; }
int cudaPointerGetAttributes(cudaPointerAttributes* found, const void* at) {
  std::lock_guard lock(mutex);
  memset(found, 0, sizeof *found);
  found->type = is_on_device(at) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return OK;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  if (int error = count_wait("cudaMemcpy", false)) return error;
  return copy(to, from, bytes), OK;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, Stream* stream) {
  launch("memcpy", stream);
  return copy(to, from, bytes), OK;
}
int cudaMemsetAsync(void*, int, size_t, Stream* stream) { return launch("memset", stream); }

}  // extern "C"
