// How the shim's functions answer: nullptr, or an error text.
#pragma once

#include <cstring>
#include <exception>

template <typename F>
char* guarded(F&& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}
