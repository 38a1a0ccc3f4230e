// All of the shim as one translation unit: libtorch's headers take six seconds to compile.

#include "autograd.cpp"
#include "collectives.cpp"
#include "cuda.cpp"
#include "runtime.cpp"
