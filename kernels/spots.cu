/*
spots: finds spots in a camera frame.

  in   frame      [height, width]   u16 or f32  ADU, row-major
  in   gain, bias [height, pitch]   f32         weighted electrons = ADU * gain + bias; or none, and both are uniform
  in   planes     [height, pitch]   f32         see SpotCall
  out  spots      [count]           Spot        in the order of their pixels

Three stages, each a lane per pixel of a row:

  convert   ADU to photo-electrons; what no camera gives (NaN, infinite, beyond 10^9) becomes the mean of the pixels around it,
            or NaN where none of those is better
  contrast  a narrow mean minus a wide one (difference of Gaussians); NaN wherever a NaN is within reach
  select    local maxima above a threshold

Looking for net gradients, the second stage is left out: maxima are those of the electrons, and the sum of gradients towards
the middle is one over the pixels around with fixed weights.

The stages are written once; the entries at the end, for the device and for the host, differ in where a lane's pixels come from
and where its spots go. No spot has a NaN within reach of its filter.

On the device some frames take these launches together, in order, all with the same SpotCall (`count` is 0 before):

  spots_convert_ADU             electrons
  spots_columns, spots_rows     contrast; not for net gradients
  spots_select                  spots, in any order
  spots_cut_ADU (SpotCut)       the boxes around them, as fit_*_ADU takes them: how many stays on the device, at `count`

  block   32 x 4 threads, a thread per pixel; to cut 64 threads
  grid    width / 32 by height / 4, rounded up, by frames; to cut as many blocks as all multiprocessors hold: each takes box
          after box
  memory  planes as SpotCall says, with a margin of 48 columns and 16 rows (src/engine/kernels/spots/plane.rs); those to work
          in one for each frame, side by side; the contrast's margin is lower than any contrast

Neighbours along x read the same rows, so what a warp reads is whole lines, and what it reads again is in the caches: with means that
reach R = 8 pixels a row of blocks reads 4 + 2 R rows of 4 bytes.

Floor, per pixel: bytes 2 in + 4 out to convert, 4 in + 8 out along columns, 8 in + 4 to 8 out along rows, 4 to 8 in to select, so 34
of which a frame up to some megapixels stays in the second-level cache: at 4.3 TB/s 126 G pixels/s from memory. Operations: 2
for converting, (2 R + 1) * 3 for each axis and (2 radius + 1)^2 where above the threshold: about 110 instructions for R = 8, at
29.6 T/s (132 multiprocessors * 128 lanes * 1.75 GHz) 270 G pixels/s; loads, of which each tap takes two, at a quarter of that: 60 G.
A frame of 512 x 512 is 4 us of that: launches, about 3 us each, are as much, so frames go together.
*/
#include "filter.cuh"

LOCAL {

constexpr float PIXEL_ELECTRONS_MAX = 1e9f;

// A spot as it leaves. The same struct stands in src/engine/kernels/spots.rs.
struct Spot {
    u32 x, y;  // pixel of the maximum
    u32 corner_x, corner_y;  // first pixel of the box around it
    float score;  // in units of the threshold
    u32 frame;    // of those of the launch; 0 on the host
};

// What to look for. The same struct stands in src/engine/kernels/spots/plan.rs.
struct SpotSetup {
    int width, height;
    int pitch;       // of every plane
    int net_reach;   // of the weights of the net gradient; 0 where contrast is asked for
    int reach;       // of the window in which a spot is the maximum
    int border;      // from the frame's edge to the first pixel that may be a spot
    int side;        // of the box
    float gain, bias;
    float threshold;
    float power;           // square of the unit of the threshold, where it is uniform
    int spread_depth;      // from an edge to the rows of `spread` that are alike
    float readout;         // variance of a pixel by reading, where it is uniform
    float background_min;
    Taps along_x, along_y;
};

// What a call works on. Planes have a margin around them. The same struct stands in src/engine/kernels/spots/plan.rs.
struct SpotCall {
    SpotSetup setup;
    const void* frame;
    const float *gain, *bias;                // or null
    const float *narrow_scale, *wide_scale;  // reciprocals of the means' weights, where electrons are weighted; or null
    const float* weights;                    // of the electrons there, and null where these are
    const float *shot, *readout;             // variance of the contrast: shot * background + readout; or null
    const float* spread;                     // where pixels are alike, that of each having 1, in rows that differ; or null
    const float* net_weights;                // of the net gradient, (2 net_reach + 1)^2
    float* electrons;
    float* narrow;    // smoothed along y: rows of the frame on the device, one row on the host
    float* wide;
    float* contrast;  // lowest beyond its edges
    float* power;     // square of the unit of the threshold; null where it is uniform
    i64 plane_values; // on the device, from a plane to work in to that of the next frame
    int noise;        // whether that unit is the noise: then `power` is written before it is read
    u32 unused;       // fills a word; 0
    u32* above;       // on the host: where lanes are above the threshold, in steps of LANES along rows of steps
    Spot* spots;
    u64 spots_max;
    u64* count;
};

// Weighted photo-electrons; NaN where there is no measurement.
template <class V> DEV V converted(V adu, V gain, V bias) {
    const V electrons = adu * gain + bias;
    const V nothing = vset<V>(0.f) / vset<V>(0.f);
    return vsel(vabs(electrons) <= PIXEL_ELECTRONS_MAX, electrons, nothing);
}

// What a pixel counts as that is no measurement: the mean of those around it that are, with its own weight, or NaN where none is. One
// dead pixel would hide all spots within reach of the filter else; a fit that holds it sees it as it is.
template <class Adu> DEV float around(const SpotCall& call, u32 frame, int x, int y) {
    const SpotSetup& setup = call.setup;
    const Adu* pixels = (const Adu*)call.frame + (i64)frame * setup.height * setup.width;
    float sum = 0.f, weights = 0.f;
    for (int r = y > 0 ? y - 1 : 0; r <= y + 1 && r < setup.height; ++r) {
        for (int c = x > 0 ? x - 1 : 0; c <= x + 1 && c < setup.width; ++c) {
            const i64 at = (i64)r * setup.pitch + c;
            const float gain = call.gain ? call.gain[at] : setup.gain;
            const float bias = call.gain ? call.bias[at] : setup.bias;
            const float electrons = (float)pixels[(i64)r * setup.width + c] * gain + bias;
            if (!(electrons <= PIXEL_ELECTRONS_MAX && electrons >= -PIXEL_ELECTRONS_MAX)) continue;
            sum += electrons;
            weights += call.weights ? call.weights[at] : 1.f;
        }
    }
    const float own = call.weights ? call.weights[(i64)y * setup.pitch + x] : 1.f;
    return sum / weights * own;
}

// What two means differ by, and the variance that this has from photons and from reading where it is asked for. Of the
// background, which is the wide mean, no less is believed than one photon in reach of the kernel would make.
template <class V>
DEV void contrasted(const SpotCall& call, int x, int y, V narrow, V wide, V& contrast, V& variance) {
    const i64 at = (i64)y * call.setup.pitch + x;
    if (call.narrow_scale) {
        narrow = narrow * vload<V>(call.narrow_scale + at);
        wide = wide * vload<V>(call.wide_scale + at);
    }
    contrast = narrow - wide;
    const V background = vmax(wide, vset<V>(call.setup.background_min));
    variance = background + call.setup.readout;
    if (call.shot) {
        variance = background * vload<V>(call.shot + at) + vload<V>(call.readout + at);
    } else if (call.spread) {
        // One row stands for all that are alike, and stays in the nearest cache.
        const int height = call.setup.height, depth = call.setup.spread_depth;
        const int rows = height < 2 * depth + 1 ? height : 2 * depth + 1;
        const int near = y < depth ? y : depth, far = y + rows - height;
        const i64 row = near > far ? near : far;
        variance = variance * vload<V>(call.spread + row * call.setup.pitch + x);
    }
}

// Which lanes' contrasts are above the threshold. Squares spare the root.
template <class V> DEV Mask<V> above_threshold(const SpotSetup& setup, V contrast, V power) {
    return contrast * vabs(contrast) > power * (setup.threshold * setup.threshold);
}

template <class V> DEV Mask<V> within_border(const SpotSetup& setup, int x) {
    const Int<V> columns = vcolumns(x);
    return (columns >= setup.border) & (columns < setup.width - setup.border);
}

// Which lanes are spots by their contrast, and their scores. `at` is the pixel of the first lane in planes that stay, `work` in
// those to work in.
template <class V> DEV Mask<V> spots_by_contrast(const SpotCall& call, int x, i64 at, i64 work, V& score) {
    const SpotSetup& setup = call.setup;
    const V contrast = vload<V>(call.contrast + work);
    const V power = call.power ? vload<V>(call.power + (call.noise ? work : at)) : vset<V>(setup.power);
    score = contrast;
    Mask<V> asked = above_threshold(setup, contrast, power) & within_border<V>(setup, x);
    if (!vany(asked)) return asked;
    asked = above_neighbours<V>(call.contrast + work, setup.pitch, setup.reach, contrast, asked);
    score = contrast * vrsqrt(vmax(power, vset<V>(1.2e-38f)));
    return asked;
}

// The same by net gradient.
template <class V> DEV Mask<V> spots_by_gradient(const SpotCall& call, int x, i64 work, V& score) {
    const SpotSetup& setup = call.setup;
    const V centre = vload<V>(call.electrons + work);
    score = centre;
    // A pixel that is not a number is no maximum.
    Mask<V> asked = within_border<V>(setup, x) & (centre == centre);
    asked = above_neighbours<V>(call.electrons + work, setup.pitch, setup.reach, centre, asked);
    if (!vany(asked)) return asked;
    score = weighed<V>(call.electrons + work, setup.pitch, setup.net_reach, call.net_weights);
    return asked & (score > setup.threshold);
}

// The first pixel of a box about `middle`, moved inwards where it would leave the frame.
DEV u32 box_corner(int middle, int side, int extent) {
    int corner = middle - side / 2;
    if (corner > extent - side) corner = extent - side;
    return (u32)(corner < 0 ? 0 : corner);
}

DEV Spot spot_at(const SpotSetup& setup, u32 frame, int x, int y, float score) {
    Spot spot;
    spot.x = (u32)x;
    spot.y = (u32)y;
    spot.corner_x = box_corner(x, setup.side, setup.width);
    spot.corner_y = box_corner(y, setup.side, setup.height);
    spot.score = score;
    spot.frame = frame;
    return spot;
}

#if ON_DEVICE

// A pixel per thread, x, y and frame as the grid has them.
struct DevicePixel {
    int x, y;
    u32 frame;
    i64 at;     // in planes that are all frames'
    i64 plane;  // where the frame's own begin
    bool inside;
    MEMBER explicit DevicePixel(const SpotCall& call) {
        x = (int)(blockIdx.x * blockDim.x + threadIdx.x);
        y = (int)(blockIdx.y * blockDim.y + threadIdx.y);
        frame = blockIdx.z;
        at = (i64)y * call.setup.pitch + x;
        plane = (i64)frame * call.plane_values;
        inside = x < call.setup.width && y < call.setup.height;
    }
    MEMBER i64 work() const { return plane + at; }
};

template <class Adu> DEV void convert_on_device(const SpotCall& call) {
    const DevicePixel pixel(call);
    if (!pixel.inside) return;
    const i64 row = (i64)pixel.frame * call.setup.height + pixel.y;
    const float adu = (float)((const Adu*)call.frame)[row * call.setup.width + pixel.x];
    const float gain = call.gain ? call.gain[pixel.at] : call.setup.gain;
    const float bias = call.gain ? call.bias[pixel.at] : call.setup.bias;
    const float electrons = converted(adu, gain, bias);
    const bool measured = electrons == electrons;
    call.electrons[pixel.work()] = measured ? electrons : around<Adu>(call, pixel.frame, pixel.x, pixel.y);
}

struct DeviceColumn {
    const float* first;  // pixel of the column in the first row
    int y, height, pitch;
    MEMBER float operator()(int d, int) const { return first[(i64)mirrored(y + d, height) * pitch]; }
};

struct DeviceRow {
    const float* first;
    int x, width;
    MEMBER float operator()(int d, int) const { return first[mirrored(x + d, width)]; }
};

}  // LOCAL

KERNEL(spots_convert_u16, (const __grid_constant__ SpotCall call)) { convert_on_device<u16>(call); }
KERNEL(spots_convert_f32, (const __grid_constant__ SpotCall call)) { convert_on_device<float>(call); }

KERNEL(spots_columns, (const __grid_constant__ SpotCall call)) {
    const SpotSetup& setup = call.setup;
    const DevicePixel pixel(call);
    if (!pixel.inside) return;
    const DeviceColumn column = {call.electrons + pixel.plane + pixel.x, pixel.y, setup.height, setup.pitch};
    float narrow[1], wide[1];
    smooth(setup.along_y, column, column, narrow, wide);
    call.narrow[pixel.work()] = narrow[0];
    call.wide[pixel.work()] = wide[0];
}

KERNEL(spots_rows, (const __grid_constant__ SpotCall call)) {
    const SpotSetup& setup = call.setup;
    const DevicePixel pixel(call);
    if (!pixel.inside) return;
    const i64 row = pixel.plane + (i64)pixel.y * setup.pitch;
    const DeviceRow narrow_row = {call.narrow + row, pixel.x, setup.width};
    const DeviceRow wide_row = {call.wide + row, pixel.x, setup.width};
    float narrow[1], wide[1], contrast, variance;
    smooth(setup.along_x, narrow_row, wide_row, narrow, wide);
    contrasted(call, pixel.x, pixel.y, narrow[0], wide[0], contrast, variance);
    call.contrast[pixel.work()] = contrast;
    if (call.noise) call.power[pixel.work()] = variance;
}

// Spots come in any order, and those beyond `spots_max` are counted but not kept.
KERNEL(spots_select, (const __grid_constant__ SpotCall call)) {
    const SpotSetup& setup = call.setup;
    const DevicePixel pixel(call);
    if (!pixel.inside || pixel.y < setup.border || pixel.y >= setup.height - setup.border) return;
    float score;
    const bool found = setup.net_reach > 0
                           ? spots_by_gradient<float>(call, pixel.x, pixel.work(), score)
                           : spots_by_contrast<float>(call, pixel.x, pixel.at, pixel.work(), score);
    if (!found) return;
    const u64 place = atomicAdd(call.count, (u64)1);
    if (place < call.spots_max) call.spots[place] = spot_at(setup, pixel.frame, pixel.x, pixel.y, score);
}

LOCAL {

// What is cut out around spots that are on the device already.
struct SpotCut {
    const void* frame;  // as in SpotCall, as are the next two
    const Spot* spots;
    const u64* count;
    u64 spots_max;
    i64 frame_pixels;
    int width;          // of the frame
    int side;           // of the boxes
    void* rois;         // [spots_max, side, side] of the frame's type
    u32* corners;       // [spots_max, 2]: x, y of each box, for a fit with maps; or null
};

// A block per ROI, ROI after ROI; a thread per pixel.
template <class Adu> DEV void cut_on_device(const SpotCut& cut) {
    const u64 found = *cut.count, count = found < cut.spots_max ? found : cut.spots_max;
    const int pixels = cut.side * cut.side;
    for (u64 i = blockIdx.x; i < count; i += gridDim.x) {
        const u32 x = cut.spots[i].corner_x, y = cut.spots[i].corner_y;
        const Adu* first = (const Adu*)cut.frame + cut.spots[i].frame * cut.frame_pixels + (i64)y * cut.width + x;
        Adu* roi = (Adu*)cut.rois + i * (u64)pixels;
        for (int j = (int)threadIdx.x; j < pixels; j += (int)blockDim.x)
            roi[j] = first[(i64)(j / cut.side) * cut.width + j % cut.side];
        if (cut.corners && threadIdx.x < 2) cut.corners[2 * i + threadIdx.x] = threadIdx.x == 0 ? x : y;
    }
}

}  // LOCAL

KERNEL(spots_cut_u16, (const __grid_constant__ SpotCut cut)) { cut_on_device<u16>(cut); }
KERNEL(spots_cut_f32, (const __grid_constant__ SpotCut cut)) { cut_on_device<float>(cut); }

#else

typedef u16 LooseShorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
DEV Floats load_adu(const u16* at) {
    return __builtin_convertvector(__builtin_convertvector(*(const LooseShorts*)at, Ints), Floats);
}
DEV Floats load_adu(const float* at) { return vload<Floats>(at); }

template <class Adu> void convert(const SpotCall& call) {
    const SpotSetup& setup = call.setup;
    for (int y = 0; y < setup.height; ++y) {
        const Adu* row = (const Adu*)call.frame + (i64)y * setup.width;
        for (int x = 0; x < setup.width; x += LANES) {
            Adu rest[LANES] = {};
            const Adu* from = row + x;
            if (x + LANES > setup.width) {
                // What follows the row may not be ours.
                for (int lane = 0; x + lane < setup.width; ++lane) rest[lane] = from[lane];
                from = rest;
            }
            const i64 at = (i64)y * setup.pitch + x;
            const Floats gain = call.gain ? vload<Floats>(call.gain + at) : vset<Floats>(setup.gain);
            const Floats bias = call.gain ? vload<Floats>(call.bias + at) : vset<Floats>(setup.bias);
            const Floats electrons = converted(load_adu(from), gain, bias);
            vstore(call.electrons + at, electrons);
            const Ints nothing = electrons != electrons;
            if (!vany(nothing)) continue;
            for (int lane = 0; lane < LANES && x + lane < setup.width; ++lane)
                if (nothing[lane]) call.electrons[at + lane] = around<Adu>(call, 0, x + lane, y);
        }
    }
}

// Lots of lanes that are smoothed together: as many as registers hold the sums of.
constexpr int LOTS = LANES == 16 ? 4 : 2;
constexpr int STRIDE = LOTS * LANES;

// The rows around one, by their distance.
struct HostColumn {
    const float* const* rows;
    int x;
    MEMBER Floats operator()(int d, int n) const { return vload<Floats>(rows[d] + x + n * LANES); }
};

struct HostRow {
    const float* at;
    MEMBER Floats operator()(int d, int n) const { return vload<Floats>(at + d + n * LANES); }
};

DEV int steps_along(const SpotSetup& setup) { return (setup.width + LANES - 1) / LANES; }

// Row by row, so that what is smoothed along y stays near. Returns how many steps of lanes have one above the threshold.
u64 contrast(const SpotCall& call) {
    const SpotSetup& setup = call.setup;
    const int reach = setup.along_x.wide_reach;
    const float* around[2 * REACH_MAX + 1];
    const float** rows = around + REACH_MAX;
    u64 above = 0;
    for (int y = 0; y < setup.height; ++y) {
        for (int d = -setup.along_y.wide_reach; d <= setup.along_y.wide_reach; ++d)
            rows[d] = call.electrons + (i64)mirrored(y + d, setup.height) * setup.pitch;
        // Lanes beyond the edge are in the margin, which is wider than a stride.
        for (int x = 0; x < setup.width; x += STRIDE) {
            const HostColumn column = {rows, x};
            Floats narrow[LOTS], wide[LOTS];
            smooth(setup.along_y, column, column, narrow, wide);
            for (int n = 0; n < LOTS; ++n) {
                vstore(call.narrow + x + n * LANES, narrow[n]);
                vstore(call.wide + x + n * LANES, wide[n]);
            }
        }
        for (int d = 1; d <= reach; ++d) {
            const int left = mirrored(-d, setup.width), right = mirrored(setup.width - 1 + d, setup.width);
            call.narrow[-d] = call.narrow[left];
            call.wide[-d] = call.wide[left];
            call.narrow[setup.width - 1 + d] = call.narrow[right];
            call.wide[setup.width - 1 + d] = call.wide[right];
        }
        for (int x = 0; x < setup.width; x += STRIDE) {
            const HostRow narrow_row = {call.narrow + x}, wide_row = {call.wide + x};
            Floats narrow[LOTS], wide[LOTS];
            smooth(setup.along_x, narrow_row, wide_row, narrow, wide);
            for (int n = 0; n < LOTS; ++n) {
                const int column = x + n * LANES;
                if (column >= setup.width) break;
                const i64 at = (i64)y * setup.pitch + column;
                Floats difference, variance;
                contrasted(call, column, y, narrow[n], wide[n], difference, variance);
                // Lanes beyond the edge are lower than any pixel.
                if (column + LANES > setup.width)
                    difference = vsel(vcolumns(column) < setup.width, difference, vset<Floats>(-3e38f));
                vstore(call.contrast + at, difference);
                const Floats power = call.noise ? variance
                                     : call.power ? vload<Floats>(call.power + at)
                                                  : vset<Floats>(setup.power);
                if (!vany(above_threshold(setup, difference, power))) continue;
                if (call.noise) vstore(call.power + at, power);
                call.above[above++] = (u32)(y * steps_along(setup) + column / LANES);
            }
        }
    }
    return above;
}

void keep(const SpotCall& call, int x, int y, Ints found, Floats score, u64& count) {
    if (!vany(found)) return;
    for (int lane = 0; lane < LANES; ++lane) {
        if (!found[lane]) continue;
        if (count < call.spots_max) call.spots[count] = spot_at(call.setup, 0, x + lane, y, score[lane]);
        ++count;
    }
}

u64 select_by_contrast(const SpotCall& call, u64 above) {
    const SpotSetup& setup = call.setup;
    u64 count = 0;
    for (u64 i = 0; i < above; ++i) {
        const int y = (int)(call.above[i] / steps_along(setup));
        const int x = (int)(call.above[i] % steps_along(setup)) * LANES;
        if (y < setup.border || y >= setup.height - setup.border) continue;
        Floats score;
        const i64 at = (i64)y * setup.pitch + x;
        const Ints found = spots_by_contrast<Floats>(call, x, at, at, score);
        keep(call, x, y, found, score, count);
    }
    return count;
}

u64 select_by_gradient(const SpotCall& call) {
    const SpotSetup& setup = call.setup;
    u64 count = 0;
    for (int y = setup.border; y < setup.height - setup.border; ++y) {
        for (int x = 0; x < setup.width; x += LANES) {
            Floats score;
            const Ints found = spots_by_gradient<Floats>(call, x, (i64)y * setup.pitch + x, score);
            keep(call, x, y, found, score, count);
        }
    }
    return count;
}

}  // LOCAL

// `wide`: the frame is f32 instead of u16.
HOST_ENTRY(find_spots)(const SpotCall* call, int wide) {
    if (wide) convert<float>(*call);
    else convert<u16>(*call);
    *call->count = call->setup.net_reach > 0 ? select_by_gradient(*call) : select_by_contrast(*call, contrast(*call));
}

#endif
