// CUDA's driver.

#include <driver_types.h>

#include "fake_device.h"

extern "C" {

int cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

int cuDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
int cuCtxGetCurrent(void** context) {
  static int one;
  return *context = &one, OK;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, OK; }
// NVRTC asks for this table, and works without it.
int cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }
struct Module {
  int device = current_device;
};
// With NULL_GPU_NO_MODULES the driver refuses kernels that are loaded at run time.
int cuModuleLoadData(Module** out, const void*) { return getenv("NULL_GPU_NO_MODULES") ? NOT_FOUND : create(out); }
int cuModuleGetFunction(void** out, Module* module, const char* name) {
  std::lock_guard lock(mutex);
  create_opaque(out);
  kernel_devices[*out] = module->device;
  kernel_names[*out] = name;
  return OK;
}
int cuLaunchKernel(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream* stream) {
  std::unique_lock lock(mutex);
  if (kernel_devices[kernel] != current_device) return refuse("another device's kernel", NOT_PERMITTED);
  lock.unlock();
  return launch_kernel(kernel, stream);
}
int cuGetErrorString(int, const char** text) { return *text = "an error", OK; }

}  // extern "C"
