// What CUDA's headers of types ask for; PyTorch's wheels bring those without this one.
#pragma once

#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define CUDARTAPI
#define CUDARTAPI_CDECL
