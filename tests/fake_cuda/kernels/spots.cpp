// Finding spots.
#include "../entries.h"
#include "../machine.h"
#define local local_spots
#include "../../../kernels/spots.cu"

#if __has_include("../../../kernels/entries.h")
#include "../../../kernels/entries.h"
SPOTS_ENTRIES(ENTRY)
#else
ENTRY(spots_convert_u16)
ENTRY(spots_convert_f32)
ENTRY(spots_columns)
ENTRY(spots_rows)
ENTRY(spots_select)
ENTRY(spots_cut_u16)
ENTRY(spots_cut_f32)
#endif
