// What all files of the shim share.
//
// Every function of the shim returns nullptr, or an error text that the caller frees with
// tm_free_error: no C++ exception may cross into Rust.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <vector>

// Runs `body`; an exception becomes an error text.
template <typename F>
char* catch_errors(F&& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

inline std::vector<at::Tensor> to_vector(at::Tensor** tensors, size_t count) {
  std::vector<at::Tensor> out;
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) out.push_back(*tensors[i]);
  return out;
}
