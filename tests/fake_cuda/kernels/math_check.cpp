// The functions of common.cuh on arrays.
#include "../entries.h"
#include "../machine.h"
#define local local_math_check
#include "../../../kernels/math_check.cu"

ENTRY(math_check)
