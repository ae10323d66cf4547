// All kernels of the product that are compiled for the device, under the names and in the lists of kernels/entries.h.
#include "../entries.h"
#include "../machine.h"

#include "../../../kernels/entries.h"

#include "../../../kernels/gauss_mle.cu"
#include "../../../kernels/math_check.cu"
#include "../../../kernels/postprocess.cu"
#include "../../../kernels/preprocess.cu"
#include "../../../kernels/spots.cu"

ALL_ENTRIES(ENTRY)
