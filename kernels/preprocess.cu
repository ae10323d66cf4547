/*
preprocess: decoded images to a model's input: what lies behind transparency, resize, crop, padding, colour order, normalisation.

  in   images   [count]   PreprocessImage   see there; samples u8 or u16, 1 to 4 channels, in any order in memory
  in   tables   see there                   which pixels make one, and with which weights, along each axis
  out  items    [count, depth, height, width] or [count, height, width, depth], f32, f16 or u8

  (pixel * scale - mean) / std for pixels from 0 to 255 (16-bit samples over 257), as src/image/preprocess.rs does it, which
  is the reference: along y, then along x, each rounded to the samples' own steps and held to their range. Pixels differ from that
  by how weights are rounded, by 1 of 255 at most; with kernels that overshoot by 3, and of 16-bit samples by more at hard edges,
  since the reference takes x first there.

A launch of each kernel that has an image of its own in the batch, and leaves the others alone, each of a PreprocessCall:
preprocess_finished, see preprocess_finished.cuh; preprocess_plain and preprocess_narrow, see preprocess_plain.cuh; and for all that is
not plain (16 bits, opacity, colour that becomes grey) preprocess:

  block   32 x 8 threads, a tile of an item: a thread per pixel
  grid    width / 32, height / 8, both rounded up, by count (at most 65535)
  shared  64 columns of 8 rows, 3 values each: 6 KB, static

Columns of the image that reach into the tile are made as low as it 64 at a time, and lie there until each thread has added those
that it needs to its sum. A warp reads neighbours in a row, 32 pixels at a time, and takes one weight for all; so the work of the
first pass is shared by the 32 columns of the tile, any reduction takes the same memory, and nothing goes to global memory between
the passes. Weights come from the host, in double precision, once for all images of a size. Rows that neighbouring tiles read
again are in the caches.

An H100 makes 0.42 M images/s of 500 x 375 RGB to 224 x 224 floats with this one, a sixth of what its memory would allow: 1150
instructions of a warp for 32 pixels, of which reading a sample of any kind is most.
*/
#include "preprocess_finished.cuh"
#include "preprocess_plain.cuh"

LOCAL {

constexpr int TILE_WIDTH = 32, TILE_HEIGHT = 8, COLUMNS = 64;

template <class Sample> DEV u32 white() { return sizeof(Sample) == 1 ? 255 : 65535; }

// `value` with opacity `alpha` over `behind`, rounded.
template <class Sample> DEV u32 over(u32 value, u32 alpha, u32 behind) {
    const u32 full = white<Sample>();
    return (value * alpha + behind * (full - alpha) + full / 2) / full;
}

// ITU-R 601 luma in 16-bit fixed point.
DEV u32 luma(u32 red, u32 green, u32 blue) { return (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16; }

// A pixel with 1 or 3 channels.
template <class Sample, int FLAT>
DEV void flat_pixel(const PreprocessCall& call, const PreprocessImage& image, const Sample* at, u32 (&pixel)[FLAT]) {
    const u32 eight = white<Sample>() / 255;
    const int next = image.step_channel;
    if (image.channels == 1) {
        for (int k = 0; k < FLAT; ++k) pixel[k] = at[0];
        return;
    }
    u32 behind[3] = {call.background[0] * eight, call.background[1] * eight, call.background[2] * eight};
    if (image.channels == 2) {
        const u32 value = at[0], alpha = at[next];
        if (FLAT == 1) behind[0] = luma(behind[0], behind[1], behind[2]);
        for (int k = 0; k < FLAT; ++k) pixel[k] = over<Sample>(value, alpha, behind[k]);
        return;
    }
    u32 red = at[0], green = at[next], blue = at[2 * next];
    if (image.channels == 4) {
        const u32 alpha = at[3 * next];
        red = over<Sample>(red, alpha, behind[0]);
        green = over<Sample>(green, alpha, behind[1]);
        blue = over<Sample>(blue, alpha, behind[2]);
    }
    if (FLAT == 1) {
        pixel[0] = luma(red, green, blue);
    } else {
        pixel[0] = red;
        pixel[FLAT / 2] = green;
        pixel[FLAT - 1] = blue;
    }
}

// To the samples' own steps.
template <class Sample> DEV float rounded(float value) {
    return floorf(vclamp(value, 0.f, (float)white<Sample>()) + 0.5f);
}

// The pixel of the item at (x, y) of the part that the image fills, of which the tile has columns from `x_first` to `x_last`. All
// threads of the block take part; those outside get nothing.
template <class Sample, int FLAT>
DEV void resample(const PreprocessCall& call, const PreprocessImage& image, int x, int y, int x_first, int x_last, float* shared,
                  float (&pixel)[FLAT]) {
    float (*low)[COLUMNS][FLAT] = (float (*)[COLUMNS][FLAT])shared;
    const bool row = y >= 0 && y < (int)image.height, inside = row && x >= 0 && x < (int)image.width;
    const u32 *x_starts = call.tables + image.x_table, *y_starts = call.tables + image.y_table;
    const float* x_weights = (const float*)(x_starts + image.width) + (inside ? x : 0);
    const float* y_weights = (const float*)(y_starts + image.height) + (row ? y : 0);
    const Sample* top = (const Sample*)image.samples + (i64)y_starts[row ? y : 0] * image.step_y;
    const u32 x_start = x_starts[inside ? x : 0], x_end = x_start + image.x_taps;
    const u32 end = x_starts[x_last] + image.x_taps;
    for (int k = 0; k < FLAT; ++k) pixel[k] = 0.f;
    for (u32 first = x_starts[x_first]; first < end; first += COLUMNS) {
        for (u32 c = threadIdx.x; row && c < COLUMNS && first + c < end; c += TILE_WIDTH) {
            const Sample* at = top + (i64)(first + c) * image.step_x;
            float sum[FLAT] = {};
            _Pragma("unroll 4")
            for (u32 tap = 0; tap < image.y_taps; ++tap) {
                u32 source[FLAT];
                flat_pixel<Sample, FLAT>(call, image, at, source);
                const float weight = y_weights[tap * image.height];
                for (int k = 0; k < FLAT; ++k) sum[k] += (float)source[k] * weight;
                at += image.step_y;
            }
            for (int k = 0; k < FLAT; ++k) low[threadIdx.y][c][k] = rounded<Sample>(sum[k]);
        }
        __syncthreads();
        if (inside) {
            const u32 from = x_start > first ? x_start : first, to = x_end < first + COLUMNS ? x_end : first + COLUMNS;
            NO_UNROLL
            for (u32 column = from; column < to; ++column) {
                const float weight = x_weights[(column - x_start) * image.width];
                for (int k = 0; k < FLAT; ++k) pixel[k] += low[threadIdx.y][column - first][k] * weight;
            }
        }
        __syncthreads();
    }
    for (int k = 0; k < FLAT; ++k) pixel[k] = rounded<Sample>(pixel[k]);
}

template <class Sample, int FLAT> DEV void preprocess_tile(const PreprocessCall& call, const PreprocessImage& image, float* shared) {
    const int item_x = (int)(blockIdx.x * TILE_WIDTH + threadIdx.x), item_y = (int)(blockIdx.y * TILE_HEIGHT + threadIdx.y);
    const int x = item_x - (int)image.left, y = item_y - (int)image.top;
    const bool inside = x >= 0 && x < (int)image.width && y >= 0 && y < (int)image.height;
    // The columns of the tile that the image fills.
    int x_first = (int)(blockIdx.x * TILE_WIDTH) - (int)image.left, x_last = x_first + TILE_WIDTH - 1;
    if (x_first < 0) x_first = 0;
    if (x_last >= (int)image.width) x_last = (int)image.width - 1;
    const int y_tile = (int)(blockIdx.y * TILE_HEIGHT) - (int)image.top;
    float pixel[FLAT] = {};
    if (x_first <= x_last && y_tile < (int)image.height && y_tile + TILE_HEIGHT > 0)
        resample<Sample, FLAT>(call, image, x, y, x_first, x_last, shared, pixel);
    if (item_x >= (int)call.width || item_y >= (int)call.height) return;
    const u64 plane = (u64)call.width * call.height, place = (u64)item_y * call.width + item_x;
    const u64 item = (u64)blockIdx.z * call.depth * plane;
    NO_UNROLL
    for (u32 k = 0; k < call.depth; ++k) {
        const u32 from = call.swapped ? 2 - k : k;
        const float own = from == 0 || FLAT == 1 ? pixel[0] : from == 1 ? pixel[FLAT / 2] : pixel[FLAT - 1];
        const float value = !inside ? call.pad : sizeof(Sample) == 1 ? own : own / 257.f;
        const float number = (product(value, call.scale) - call.mean[k]) / call.std[k];
        const u64 at = item + (call.interleaved ? place * call.depth + k : k * plane + place);
        switch (call.element) {
            case ELEMENT_F32: store((float*)call.items + at, value, number); break;
            case ELEMENT_F16: store((Half*)call.items + at, value, number); break;
            default: store((u8*)call.items + at, value, number);
        }
    }
}

}  // LOCAL

KERNEL_OF(preprocess, 256, (const __grid_constant__ PreprocessCall call)) {
    __shared__ float shared[TILE_HEIGHT * COLUMNS * 3];
    const PreprocessImage& image = call.images[blockIdx.z];
    if (image.way >= RESAMPLED) return;
    // Grey with a grey background stays grey until it is written.
    const bool plain = call.background[0] == call.background[1] && call.background[0] == call.background[2];
    const bool flat = call.depth == 1 || image.channels == 1 || (image.channels == 2 && plain);
    if (image.way == WORDS) {
        if (flat) preprocess_tile<u16, 1>(call, image, shared);
        else preprocess_tile<u16, 3>(call, image, shared);
    } else {
        if (flat) preprocess_tile<u8, 1>(call, image, shared);
        else preprocess_tile<u8, 3>(call, image, shared);
    }
}

KERNEL_OF(preprocess_plain, 256, (const __grid_constant__ PreprocessCall call)) {
    __shared__ u32 shared[8][PLAIN_ROWS * PLAIN_WORDS];
    const PreprocessImage image = call.images[blockIdx.z];
    if (image.way != RESAMPLED && image.way != COPIED) return;
    if (image.channels == 1) plain_tile<1, Normal, PLAIN_ROWS, false>(call, image, shared[threadIdx.y]);
    else plain_tile<3, Normal, PLAIN_ROWS, false>(call, image, shared[threadIdx.y]);
}

// Four blocks on a multiprocessor: with more registers there would be three, which hide too little of what they wait for.
#define NARROW_BOUNDS 256, 4
KERNEL_OF(preprocess_narrow, NARROW_BOUNDS, (const __grid_constant__ PreprocessCall call)) {
    __shared__ u32 shared[8][NARROW_ROWS * PLAIN_WORDS];
    const PreprocessImage image = call.images[blockIdx.z];
    if (image.way != NARROW) return;
    if (image.channels == 1) plain_tile<1, Nearly, NARROW_ROWS, true>(call, image, shared[threadIdx.y]);
    else plain_tile<3, Nearly, NARROW_ROWS, true>(call, image, shared[threadIdx.y]);
}

KERNEL_OF(preprocess_finished, 256, (const __grid_constant__ PreprocessCall call)) {
    const PreprocessImage& image = call.images[blockIdx.z];
    const u32 quad = (blockIdx.x * 8 + threadIdx.y) * 32 + threadIdx.x;
    if (image.way != FINISHED || quad >= call.width * call.height / 4) return;
    const u32* const words = (const u32*)image.samples;
    switch (call.element) {
        case ELEMENT_F32: finished<float>(call, words, quad); break;
        case ELEMENT_F16: finished<Half>(call, words, quad); break;
        default: finished<u8>(call, words, quad);
    }
}
