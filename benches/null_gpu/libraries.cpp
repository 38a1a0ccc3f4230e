// cuBLAS and cuDNN.

#include <cstdint>

#include "fake_device.h"

extern "C" {

// cuBLAS
int cublasCreate_v2(Handle** out) { return create(out); }
int cublasSetStream_v2(Handle* handle, Stream* stream) { return handle->stream = stream, OK; }
int cublasGetMathMode(Handle*, int* mode) { return *mode = 0, OK; }
int cublasGetPointerMode_v2(Handle*, int* mode) { return *mode = 0, OK; }
int cublasGemmEx(Handle* handle) { return launch("cublasGemmEx", handle->stream); }
int cublasGemmStridedBatchedEx(Handle* handle) { return launch("cublasGemmStridedBatchedEx", handle->stream); }
int cublasSgemm_v2(Handle* handle) { return launch("cublasSgemm", handle->stream); }
int cublasSgemmStridedBatched(Handle* handle) { return launch("cublasSgemmStridedBatched", handle->stream); }
int cublasLtMatmulDescCreate(void** out, int, int) { return create_opaque(out); }
int cublasLtMatrixLayoutCreate(void** out) { return create_opaque(out); }
int cublasLtMatmulPreferenceCreate(void** out) { return create_opaque(out); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* count) {
  return *count = 1, OK;
}
int cublasLtMatmul(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, size_t,
                   Stream* stream) {
  return launch("cublasLtMatmul", stream);
}

// cuDNN: any plan is accepted, so libtorch takes the first one.
int cudnnCreate(Handle** out) { return create(out); }
int cudnnSetStream(Handle* handle, Stream* stream) { return handle->stream = stream, OK; }
int cudnnGetStream(Handle* handle, Stream** stream) { return *stream = handle->stream, OK; }
size_t cudnnGetVersion() { return 91900; }
size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(int) { return "a cuDNN error"; }
void cudnnGetLastErrorString(char* text, size_t room) {
  if (room) *text = 0;
}
int cudnnBackendCreateDescriptor(int, void** out) { return create_opaque(out); }
int cudnnBackendDestroyDescriptor(void* descriptor) { return free(descriptor), OK; }
int cudnnBackendGetAttribute(void*, int, int type, int64_t wanted, int64_t* count, void* out) {
  constexpr int INT64 = 3, INT32 = 23;
  if (count) *count = 1;
  if (out && wanted > 0 && type == INT64) memset(out, 0, 8);
  if (out && wanted > 0 && type == INT32) memset(out, 0, 4);
  return OK;
}
int cudnnBackendExecute(Handle* handle, void*, void*) { return launch("cudnnBackendExecute", handle->stream); }

}  // extern "C"
