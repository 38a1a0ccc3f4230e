// The state of a GPU that computes nothing. Work is counted and not done; memory is reserved and
// never touched; copies to the host contain 1.0 repeatedly, and a copy of a single number 0.0.
// Captures have CUDA's rules: a call that a captured stream must not make fails and is counted as a
// violation; work on another stream meanwhile has escaped the capture.
//
// The environment variable NULL_GPU_REPORT names a file. It gets the counts so far, as a line of
// JSON, at every copy to the host and when the process ends.
#pragma once

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

namespace fake_gpu {

// CUDA's error codes.
enum Status {
  OK = 0,
  OUT_OF_MEMORY = 2,
  NOT_FOUND = 500,
  NOT_PERMITTED = 900,
  UNMATCHED = 901,
  UNJOINED = 904,
  ISOLATION = 905,
  CAPTURED_EVENT = 907,
};

// cudaStreamCaptureMode.
enum CaptureMode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

// The current device of the calling thread.
inline thread_local int current_device = 0;

// How many launches of each stream come before something.
using Order = std::map<const void*, long>;
struct Stream {
  int device = current_device;
  // Below 0 is high.
  int priority = 0;
  Order before = {};
};
struct Event {
  bool recorded = false;
  // The capture that it is part of, counted from 1.
  long capture = 0;
  Order before = {};
};
struct Graph {
  long kernels = 0;
};
// A handle of cuBLAS or cuDNN.
struct Handle {
  Stream* stream = nullptr;
};

// An H200's memory, or NULL_GPU_MEMORY_MIB.
inline size_t total_memory() {
  const char* given = getenv("NULL_GPU_MEMORY_MIB");
  return given ? size_t(atol(given)) << 20 : size_t(141) << 30;
}

inline std::mutex mutex;
inline std::map<const void*, std::string> kernel_names;
// The devices of kernels that were loaded through the driver.
inline std::map<const void*, int> kernel_devices;
// Device memory: addresses and sizes in bytes.
inline std::map<char*, size_t> blocks;
inline size_t used_memory = 0;

// What benches/null_gpu/__init__.py reads as a Report.
struct Counts {
  std::map<std::string, long> kernels;
  long launches = 0, captures = 0, captured = 0, escaped = 0, replays = 0, replayed = 0, violations = 0, waits = 0, on_first = 0;
  size_t peak_bytes = 0;
  std::chrono::steady_clock::time_point start_time = std::chrono::steady_clock::now();

  // Adds a line to the report; only the last line has the kernels by name.
  void write(bool is_last) const {
    const char* path = getenv("NULL_GPU_REPORT");
    FILE* file = path && launches ? fopen(path, "a") : nullptr;
    if (!file) return;
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
    fprintf(file,
            "{\"launches\": %ld, \"captures\": %ld, \"captured\": %ld, \"escaped\": %ld, \"replays\": %ld, \"replayed\": %ld, "
            "\"violations\": %ld, \"waits\": %ld, \"on_first\": %ld, \"peak_bytes\": %zu, \"seconds\": %f, \"kernels\": {",
            launches, captures, captured, escaped, replays, replayed, violations, waits, on_first, peak_bytes, seconds);
    const char* separator = "";
    for (const auto& [name, count] : kernels) {
      if (!is_last) break;
      fprintf(file, "%s\"%s\": %ld", separator, name.c_str(), count);
      separator = ", ";
    }
    fprintf(file, "}}\n");
    fclose(file);
  }
  ~Counts() { write(true); }
};
inline Counts counts;

// The capture that is under way, by the stream on which it began. There is one at a time.
inline Stream* capturing = nullptr;
inline std::set<Stream*> captured_streams;
inline std::thread::id capture_thread;
inline int capture_mode = GLOBAL;
inline long captured_kernels = 0;

inline thread_local int thread_mode = GLOBAL;
inline thread_local int last_error = OK;

inline bool is_captured(Stream* stream) { return capturing && captured_streams.count(stream); }
inline bool is_captured(const Event* event) { return capturing && event->capture == counts.captures; }

// Counts a violation of the rules of captures.
inline int refuse(const char* what, int error) {
  ++counts.violations;
  fprintf(stderr, "null GPU: %s is not permitted, or not in a capture\n", what);
  return last_error = error;
}

// Checks a call that is not allowed while a capture is under way.
inline int check_unsafe_call(const char* what) {
  std::lock_guard lock(mutex);
  bool applies_here =
      capture_mode == GLOBAL || (capture_mode == THREAD_LOCAL && std::this_thread::get_id() == capture_thread);
  return capturing && thread_mode != RELAXED && applies_here ? refuse(what, NOT_PERMITTED) : OK;
}

// Counts a call with which the host waits for a stream.
inline int count_wait(const char* what, bool is_stream_captured) {
  if (int error = check_unsafe_call(what)) return error;
  std::lock_guard lock(mutex);
  if (is_stream_captured) return refuse(what, NOT_PERMITTED);
  ++counts.waits;
  return OK;
}

// Counts a kernel, a copy or a call of a library.
inline int launch(const std::string& name, Stream* stream) {
  std::lock_guard lock(mutex);
  if (stream && stream->device != current_device) return refuse("work on another device's stream", NOT_PERMITTED);
  ++counts.launches;
  counts.on_first += current_device == 0;
  ++counts.kernels[name];
  if (is_captured(stream)) {
    ++counts.captured;
    ++captured_kernels;
    ++stream->before[stream];
  } else if (capturing) {
    ++counts.escaped;
    fprintf(stderr, "null GPU: %s is on another stream than the capture\n", name.c_str());
  }
  return OK;
}

inline int launch_kernel(const void* kernel, Stream* stream) {
  std::unique_lock lock(mutex);
  auto found = kernel_names.find(kernel);
  std::string name = found == kernel_names.end() ? "unknown" : found->second;
  lock.unlock();
  return launch(name, stream);
}

inline bool is_on_device(const void* address) {
  auto after = blocks.upper_bound((char*)address);
  if (after == blocks.begin()) return false;
  auto block = std::prev(after);
  return (char*)address < block->first + block->second;
}

// Copies to the host for real if the source is on the host; from the device come ones, or a single
// zero.
inline void copy(void* to, const void* from, size_t bytes) {
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
int create(T** out) {
  *out = new T;
  return OK;
}

// An opaque object: callers use only its address.
inline int create_opaque(void** out) {
  *out = calloc(1, 256);
  return OK;
}

}  // namespace fake_gpu

using namespace fake_gpu;
