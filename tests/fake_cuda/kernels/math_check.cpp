// The functions of common.cuh on arrays.
#include "../entries.h"
#include "../machine.h"
#define local local_math_check
#include "../../../kernels/math_check.cu"

#if __has_include("../../../kernels/entries.h")
#include "../../../kernels/entries.h"
MATH_CHECK_ENTRIES(ENTRY)
#else
ENTRY(math_check)
#endif
