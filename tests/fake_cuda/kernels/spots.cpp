// Finding spots.
#include "../entries.h"
#include "../machine.h"
#define local local_spots
#include "../../../kernels/spots.cu"

ENTRY(spots_convert_u16)
ENTRY(spots_convert_f32)
ENTRY(spots_columns)
ENTRY(spots_rows)
ENTRY(spots_select)
ENTRY(spots_cut_u16)
ENTRY(spots_cut_f32)
