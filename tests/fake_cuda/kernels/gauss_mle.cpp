// The fitter.
#include "../entries.h"
#include "../machine.h"
// Kernels of different sources may give one name to different things.
#define local local_gauss_mle
#include "../../../kernels/gauss_mle.cu"

#if __has_include("../../../kernels/entries.h")
#include "../../../kernels/entries.h"
GAUSS_MLE_ENTRIES(ENTRY)
#else
#define FITS(model)             \
    ENTRY(fit_##model##_u16)    \
    ENTRY(fit_##model##_u16_maps) \
    ENTRY(fit_##model##_f32)    \
    ENTRY(fit_##model##_f32_maps)

FITS(xynb)
FITS(xynbs)
FITS(xynbsxsy)
FITS(xyznb)
#endif
