/*
preprocess_plain: images of bytes with 1 channel or 3, which are most: resized in whole numbers, or only made numbers.

  block   32 x 8 threads, a tile of 32 x 32 pixels of an item: each warp has 4 rows of it, each thread a column of those
  grid    width / 32, height / 32, both rounded up, by count (at most 65535)
  shared  96 columns of 32 rows, 3 bytes each: 9 KB, static

Columns of the image that reach into the tile are made as low as it 96 at a time, row by row, and lie there until each thread has
added those that it needs. A warp reads neighbours in a row, three columns a thread, so that a weight serves three; nobody else
reads what it leaves in shared memory.

Tables of RESAMPLED images, n pixels along an axis:
  y   [n] first row, [taps, n] weights: whole numbers, 2^22 for 1
  x   [n] first column, a multiple of 4, [taps, 2, n] weights of 4 columns that lie side by side in a word: whole numbers of 16 bits,
      2^14 for 1, as their upper bytes and their lower ones, all signed: w = 256 upper + lower
Of both, all weights of a pixel make 1 together, and their sizes less than 2.
Of COPIED images: [n] the one row or column that makes a pixel.

Along x, four columns are multiplied and added at once (dp4a), and a weight serves the 4 rows of its thread.

Floor, per image of w x h RGB to W x H: bytes 3 w h + 12 W H as f32: 500 x 375 to 224 x 224 is 0.56 + 0.60 MB, at 3.0 TB/s (what a
copy on an H100 reads and writes) 0.39 us, so 2.6 M images/s. Instructions of a warp for 32 pixels, by a bilinear filter with 5 rows and 7
columns for each: along y 37 for each row and 82 around them, along x 15 for each 4 columns, 70 to begin and to write: 418 counted
by the profiler, 1568 times for an image. 132 multiprocessors * 4 * 1.98 GHz issue 1.05 T/s: 1.6 M images/s if none ever waited. An H100
issues in 69 of 100 cycles, and makes 1.06 M images/s: what is left to gain is fewer instructions along y.
*/
#pragma once
#include "preprocess.cuh"

LOCAL {

constexpr int PLAIN_TILE = 32, PLAIN_ROWS = 4, PLAIN_COLUMNS = 96, PLAIN_WORDS = PLAIN_COLUMNS / 4;
constexpr u32 GROUPS = PLAIN_COLUMNS / 32;
constexpr int X_BITS = 14, Y_BITS = 22;

DEV int within(int value, int first, int last) { return value < first ? first : value > last ? last : value; }

// sum + the products of four bytes and four signed ones, added: one instruction, for which NVRTC has no name.
DEV int dot(u32 bytes, u32 weights, int sum) {
#if defined(MACHINE_IS_HOST)
    for (int i = 0; i < 32; i += 8) sum += (int)(bytes >> i & 255) * (signed char)(weights >> i);
#else
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(bytes), "r"(weights));
#endif
    return sum;
}

// The rows of this thread's column from (x, y) of the part that the image fills on, made of what lies in `low`, its warp's part of shared
// memory. Of the tile, the image fills columns from `x_first` to `x_last`. Who is outside makes
// the nearest pixel that is inside, so that a warp does everything together.
template <int FLAT, bool BESIDE>
DEV void plain_pixels(const PreprocessCall& call, const PreprocessImage& image, int x, int y, int x_first, int x_last,
                      u32 (*low)[3][PLAIN_WORDS], int (&pixel)[PLAIN_ROWS][FLAT]) {
    const u32* const tables = call.tables;
    const u32 lane = threadIdx.x, width = image.width, height = image.height, x_table = image.x_table, y_table = image.y_table;
    const u32 y_taps = image.y_taps, last = image.columns - 1;
    const int step_x = image.step_x, step_y = image.step_y, next = BESIDE ? 1 : image.step_channel;
    const u8* const samples = (const u8*)image.samples;
    x = within(x, x_first, x_last);
    const u32 x_start = tables[x_table + x], x_end = x_start + 4 * image.x_taps;
    const u32 end = tables[x_table + x_last] + 4 * image.x_taps;
    UNROLL
    for (int r = 0; r < PLAIN_ROWS; ++r)
        for (int k = 0; k < FLAT; ++k) pixel[r][k] = 1 << (X_BITS - 1);
    for (u32 first = tables[x_table + x_first]; first < end; first += PLAIN_COLUMNS) {
        // Columns of this thread; beyond the last of the image it is the last again.
        u32 column[GROUPS];
        UNROLL
        for (u32 g = 0; g < GROUPS; ++g) column[g] = first + lane + 32 * g < last ? first + lane + 32 * g : last;
        const bool third = first + 64 < end;
        NO_UNROLL
        for (int r = 0; r < PLAIN_ROWS; ++r) {
            u32 weight_at = y_table + (u32)within(y + r, 0, (int)height - 1);
            const u8* const top = samples + (i64)tables[weight_at] * step_y;
            const u8* at[GROUPS];
            int sum[GROUPS][FLAT];
            UNROLL
            for (u32 g = 0; g < GROUPS; ++g) {
                at[g] = top + (i64)column[g] * step_x;
                for (int k = 0; k < FLAT; ++k) sum[g][k] = 1 << (Y_BITS - 1);
            }
            NO_UNROLL
            for (u32 tap = 0; tap < y_taps; ++tap) {
                weight_at += height;
                const int weight = (int)tables[weight_at];
                UNROLL
                for (u32 g = 0; g < GROUPS; ++g) {
                    if (g == 2 && !third) break;
                    for (int k = 0; k < FLAT; ++k) sum[g][k] += at[g][k * next] * weight;
                    at[g] += step_y;
                }
            }
            UNROLL
            for (int k = 0; k < FLAT; ++k)
                for (u32 g = 0; g < GROUPS; ++g) ((u8*)low[r][k])[lane + 32 * g] = (u8)within(sum[g][k] >> Y_BITS, 0, 255);
        }
        __syncwarp();
        const u32 from = x_start > first ? x_start : first, to = x_end < first + PLAIN_COLUMNS ? x_end : first + PLAIN_COLUMNS;
        u32 weight_at = x_table + width + (u32)x + (from - x_start) / 2 * width;
        NO_UNROLL
        for (u32 at = from; at < to; at += 4) {
            const u32 upper = tables[weight_at], lower = tables[weight_at + width];
            weight_at += 2 * width;
            UNROLL
            for (int r = 0; r < PLAIN_ROWS; ++r)
                for (int k = 0; k < FLAT; ++k) {
                    const u32 four = low[r][k][(at - first) / 4];
                    pixel[r][k] = dot(four, lower, pixel[r][k]) + 256 * dot(four, upper, 0);
                }
        }
        __syncwarp();
    }
    UNROLL
    for (int r = 0; r < PLAIN_ROWS; ++r)
        for (int k = 0; k < FLAT; ++k) pixel[r][k] = within(pixel[r][k] >> X_BITS, 0, 255);
}

// The same where one pixel makes one.
template <int FLAT>
DEV void copied_pixels(const PreprocessCall& call, const PreprocessImage& image, int x, int y, int x_first, int x_last,
                       int (&pixel)[PLAIN_ROWS][FLAT]) {
    const u8* const samples =
        (const u8*)image.samples + (i64)call.tables[image.x_table + within(x, x_first, x_last)] * image.step_x;
    UNROLL
    for (int r = 0; r < PLAIN_ROWS; ++r) {
        const u32 row = call.tables[image.y_table + within(y + r, 0, (int)image.height - 1)];
        const u8* const at = samples + (i64)row * image.step_y;
        for (int k = 0; k < FLAT; ++k) pixel[r][k] = at[k * image.step_channel];
    }
}

// (value * scale - mean) / std, the quotient rounded as a division rounds it: what is left of the first guess makes it exact
// (Markstein 1990), where nothing leaves a number's range.
DEV float normalized(const PreprocessCall& call, u32 channel, float value) {
    const float above = product(value, call.scale) - call.mean[channel], std = call.std[channel];
    const float guess = product(above, call.inverse[channel]);
    return fmaf(fmaf(-guess, std, above), call.inverse[channel], guess);
}

// Writes the pixels of a thread: its first one's first value is at `first` of all items, and `rows` of them are in the item, those of the
// bits of `inside` in the image.
template <class Element, int FLAT>
DEV void write_pixels(const PreprocessCall& call, u64 first, int rows, u32 inside, const int (&pixel)[PLAIN_ROWS][FLAT]) {
    const u64 to_channel = call.interleaved ? 1 : (u64)call.width * call.height;
    const u32 to_row = call.interleaved ? call.width * call.depth : call.width;
    Element* at = (Element*)call.items + first;
    UNROLL
    for (int r = 0; r < PLAIN_ROWS; ++r) {
        if (r >= rows) return;
        UNROLL
        for (u32 k = 0; k < 3; ++k) {
            if (k >= call.depth) break;
            // Blue first, where it is so.
            const int own = call.swapped ? pixel[r][FLAT - 1 - k * FLAT / 3] : pixel[r][k * FLAT / 3];
            const float value = inside >> r & 1 ? (float)own : call.pad;
            store(at + k * to_channel, value, normalized(call, k, value));
        }
        at += to_row;
    }
}

template <int FLAT> DEV void plain_tile(const PreprocessCall& call, const PreprocessImage& image, u32 (*low)[3][PLAIN_WORDS]) {
    const int item_x = (int)(blockIdx.x * PLAIN_TILE + threadIdx.x);
    const int item_y = (int)(blockIdx.y * PLAIN_TILE + threadIdx.y * PLAIN_ROWS);
    const int x = item_x - (int)image.left, y = item_y - (int)image.top;
    // The columns of the tile that the image fills.
    const int x_left = x - (int)threadIdx.x, x_right = x_left + PLAIN_TILE - 1;
    const int x_first = x_left < 0 ? 0 : x_left, x_last = x_right < (int)image.width ? x_right : (int)image.width - 1;
    int pixel[PLAIN_ROWS][FLAT] = {};
    if (x_first <= x_last && y < (int)image.height && y + PLAIN_ROWS > 0) {
        if (image.way == COPIED) copied_pixels<FLAT>(call, image, x, y, x_first, x_last, pixel);
        else if (FLAT == 1 || image.step_channel == 1) plain_pixels<FLAT, true>(call, image, x, y, x_first, x_last, low, pixel);
        else plain_pixels<FLAT, false>(call, image, x, y, x_first, x_last, low, pixel);
    }
    if (item_x >= (int)call.width) return;
    u32 inside = 0;
    UNROLL
    for (int r = 0; r < PLAIN_ROWS; ++r) inside |= (u32)(y + r >= 0 && y + r < (int)image.height) << r;
    if (x < 0 || x >= (int)image.width) inside = 0;
    const u64 place = (u64)item_y * call.width + item_x;
    const u64 first = (u64)blockIdx.z * call.depth * call.width * call.height + (call.interleaved ? place * call.depth : place);
    const int rows = (int)call.height - item_y;
    switch (call.element) {
        case ELEMENT_F32: write_pixels<float, FLAT>(call, first, rows, inside, pixel); break;
        case ELEMENT_F16: write_pixels<Half, FLAT>(call, first, rows, inside, pixel); break;
        default: write_pixels<u8, FLAT>(call, first, rows, inside, pixel);
    }
}

}  // LOCAL
