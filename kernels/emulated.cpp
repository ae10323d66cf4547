// emulated: all kernels for the device, for tests on machines without one. See emulate.h.
#include "emulate.h"
#include "entries.h"

#include "gauss_mle.cu"
#include "math_check.cu"
#include "postprocess.cu"
#include "preprocess.cu"
#include "spots.cu"

#define ENTRY(name) emulate::kernel_of(#name, name),
const emulate::Kernel emulate::kernels[] = {
    ALL_ENTRIES(ENTRY)
    {nullptr, nullptr, nullptr},
};
