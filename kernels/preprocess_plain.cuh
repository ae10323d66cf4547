/*
preprocess_plain: images of bytes with 1 channel or 3, which are most: resized in whole numbers, or only made numbers.
preprocess_narrow: those that are resized and of which up to 128 columns of three channels make a tile, or 384 of one.

  block   32 x 8 threads, a tile of 32 x 32 pixels of an item: each warp has 4 rows of it, each thread a column of those
  narrow  the same with 8 rows for each warp: 32 x 64 pixels
  grid    width / 32, height / 32 (narrow 64), both rounded up, by count (at most 65535)
  shared  96 words of 32 rows (narrow 64): 12 KB (24 KB), static

Along y a row is only bytes, whatever they stand for: a thread makes words of four that lie side by side, for its warp's rows one
after the other, and they lie in shared memory as they lay in the image, up to 128 columns of three channels at a time, until each
thread has added those that it needs along x. Nobody else reads what a warp leaves there. Where all have room at once, sums need no
registers while words are made, so that there are enough for twice the rows.

Tables of RESAMPLED and NARROW images, n pixels along an axis, weights of 16 bits, two in a word, the first one lower; 2^bits stands for 1:
  y   [n, 1 + pairs]   of each pixel the first row, and weights of two rows each, two pairs at least; all these are in the image
  x   [n] first column, a multiple of 4; [fours, 2, n] weights of four columns, which need not all be in the image
Of both, all weights of a pixel make 1 together, and their sizes less than 2. There are as many bits as the largest weight leaves:
so also many small ones are exact, and sums stay within 31 bits. Of COPIED images: [n] the one row or column that makes a pixel.

Two weights are multiplied by two bytes and added at once (dp2a), wherever in a word those lie. So of the words of two rows, two
permutations make what four of these take, and of four pixels with three channels, three words, four make what twelve take.

Words are read whole: also up to 3 bytes around an image, which lie in a word with one of its own.

Floor, per image of w x h RGB to W x H: bytes 3 w h + 12 W H as f32: 500 x 375 to 224 x 224 is 0.56 + 0.60 MB, at 3.0 TB/s (what a
copy on an H100 reads and writes) 0.39 us, so 2.6 M images/s. Instructions of a warp for 32 pixels, by a bilinear filter with 4 rows
and 8 columns for each, counted by an H200: 167 of the narrow one, 1568 times for an image. 132 multiprocessors * 4 * 1.98 GHz issue
1.05 T/s: 4.0 M images/s if none ever waited. It issues in 64 of 100 cycles; registers leave 32 warps of 64, which wait 40 of 100 for what
they read. So an H200 (4.2 TB/s) makes 2.5 M images/s, and 1.8 M of 375 x 500, with 6 rows for each pixel and rows that begin within
words. Fetching ahead is 15 % of that, the simpler number 3 %. With 40 warps and 6 rows each there are 2.6 M and 1.7 M, but on an A100
registers do not suffice. A copy of the rows in shared memory, made by the block, has twice the instructions: 1.65 M on an H100, where
what was before this made 1.77 M.
*/
#pragma once
#include "preprocess.cuh"

LOCAL {

// Of a tile, of which each warp has four rows, or eight of NARROW images; words of a row that lie in shared memory at once.
constexpr int PLAIN_WIDTH = 32, PLAIN_ROWS = 4, NARROW_ROWS = 8, PLAIN_WORDS = 96;

DEV int within(int value, int first, int last) { return value < first ? first : value > last ? last : value; }

// sum + the products of two signed weights and the lower or upper two of four bytes; an address so many steps further on; two numbers held
// to a byte's range, below the lower half of `before`. Each is an instruction for which NVRTC has no name, or makes six.
#if defined(MACHINE_IS_HOST)
DEV int dot(u32 weights, u32 two, int sum) {
    return sum + (short)weights * (int)(two & 255) + (short)(weights >> 16) * (int)(two >> 8 & 255);
}
DEV int dot_lower(u32 weights, u32 bytes, int sum) { return dot(weights, bytes, sum); }
DEV int dot_upper(u32 weights, u32 bytes, int sum) { return dot(weights, bytes >> 16, sum); }
DEV const u8* moved(const u8* at, int steps, int step) { return at + (i64)steps * step; }
DEV u32 bytes_of(int upper, int lower, u32 before) {
    return before << 16 | (u32)within(upper, 0, 255) << 8 | (u32)within(lower, 0, 255);
}
DEV void prefetch(const u8*) {}
#else
DEV void prefetch(const u8* at) { asm volatile("prefetch.global.L2 [%0];" :: "l"(at)); }
DEV int dot_lower(u32 weights, u32 bytes, int sum) {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(bytes));
    return sum;
}
DEV int dot_upper(u32 weights, u32 bytes, int sum) {
    asm("dp2a.hi.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(bytes));
    return sum;
}
DEV const u8* moved(const u8* at, int steps, int step) {
    const u8* to;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(to) : "r"(steps), "r"(step), "l"(at));
    return to;
}
DEV u32 bytes_of(int upper, int lower, u32 before) {
    u32 bytes;
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(upper), "r"(lower), "r"(before));
    return bytes;
}
#endif

// How a row's words are read. ALIGNED: as they lie. SHIFTED: they begin within words. SCATTERED: byte by byte, since the row is turned,
// mirrored or in planes.
enum Access { ALIGNED, SHIFTED, SCATTERED };

// N words of a row, side by side. `at` is the first one's first byte, from which on the row has `left` bytes, and so one of the last
// word's; or the row's first pixel, of which the bytes lie `apart`.
template <Access ACCESS, int N> DEV void read(const u8* at, int left, const int (&apart)[4], u32 (&words)[N]) {
    if (ACCESS == SCATTERED) {
        words[0] = __ldg(at + apart[0]) | __ldg(at + apart[1]) << 8 | __ldg(at + apart[2]) << 16 | (u32)__ldg(at + apart[3]) << 24;
        return;
    }
    const int before = ACCESS == SHIFTED ? (int)((u64)at & 3) : 0;
    const u32* const from = (const u32*)(ACCESS == SHIFTED ? (u64)at & ~3ull : (u64)at);
    UNROLL
    for (int i = 0; i < N; ++i) words[i] = __ldg(from + i);
    if (ACCESS == ALIGNED) return;
    u32 last = 0;
    if (before + left > 4 * N) last = __ldg(from + N);
    UNROLL
    for (int i = 0; i < N; ++i) words[i] = __funnelshift_r(words[i], i + 1 < N ? words[i + 1] : last, 8 * (u32)before);
}

// Adds 2 * PAIRS rows from `at` on to what there was `before`.
template <Access ACCESS, int N, int PAIRS>
DEV void add_rows(const u8* at, int step, int left, const int (&apart)[4], const u32* weights, const int (&before)[N][4],
                  int (&sum)[N][4]) {
    u32 words[2 * PAIRS][N];
    UNROLL
    for (int i = 0; i < 2 * PAIRS; ++i) read<ACCESS, N>(i == 0 ? at : moved(at, i, step), left, apart, words[i]);
    UNROLL
    for (int i = 0; i < PAIRS; ++i) {
        const u32 weight = weights[i];
        UNROLL
        for (int n = 0; n < N; ++n) {
            const u32 first = words[2 * i][n], second = words[2 * i + 1][n];
            const u32 lower = __byte_perm(first, second, 0x5140), upper = __byte_perm(first, second, 0x7362);
            const int* const from = i == 0 ? before[n] : sum[n];
            sum[n][0] = dot_lower(weight, lower, from[0]);
            sum[n][1] = dot_upper(weight, lower, from[1]);
            sum[n][2] = dot_lower(weight, upper, from[2]);
            sum[n][3] = dot_upper(weight, upper, from[3]);
        }
    }
}

// The words of ROWS rows of the warp from byte `first` on, N of each thread, those in the image, to `low` and behind it. Rows that are not
// in the image are left as they are: nobody looks at what becomes of them.
template <Access ACCESS, int CHANNELS, int ROWS, int N>
DEV void low_words(const PreprocessCall& call, const PreprocessImage& image, int y, int first, u32* low) {
    // Single bytes take many registers.
    constexpr int AT_ONCE = ACCESS == SCATTERED ? 1 : 2;
    const int step = image.step_y, bits = (int)image.y_bits, pairs = (int)image.y_taps;
    const int bytes = CHANNELS * (int)image.columns, half = 1 << (bits - 1);
    // Beyond the row's end are its last words once more.
    const int own = first + 4 * N * (int)threadIdx.x, last = (bytes - 1 & ~3) - 4 * (N - 1), place = own < last ? own : last;
    const u8* top = (const u8*)image.samples;
    int apart[4] = {};
    if (ACCESS == SCATTERED) {
        for (int i = 0; i < 4; ++i) {
            const int byte = place + i < bytes ? place + i : bytes - 1;
            apart[i] = (byte / CHANNELS) * image.step_x + (byte % CHANNELS) * image.step_channel;
        }
    } else {
        top += place;
    }
    int halves[N][4];
    for (int n = 0; n < N; ++n)
        for (int k = 0; k < 4; ++k) halves[n][k] = half;
    const int row = y < 0 ? 0 : y, behind = y + ROWS < (int)image.height ? y + ROWS : (int)image.height;
    const u32* weights = call.tables + (image.y_table + (u32)row * (u32)(1 + pairs));
    low += (row - y) * PLAIN_WORDS + ((place - first) >> 2);
    NO_UNROLL
    for (int rows = behind - row; rows > 0; --rows) {
        const u8* const at = moved(top, (int)weights[0], step);
        int sum[N][4];
        add_rows<ACCESS, N, AT_ONCE>(at, step, bytes - place, apart, weights + 1, halves, sum);
        NO_UNROLL
        for (int pair = AT_ONCE + 1; pair <= pairs; ++pair)
            add_rows<ACCESS, N, 1>(moved(at, 2 * pair - 2, step), step, bytes - place, apart, weights + pair, sum, sum);
        UNROLL
        for (int n = 0; n < N; ++n) {
            const u32 upper = bytes_of(sum[n][3] >> bits, sum[n][2] >> bits, 0);
            low[n] = bytes_of(sum[n][1] >> bits, sum[n][0] >> bits, upper);
        }
        weights += 1 + pairs;
        low += PLAIN_WORDS;
    }
}

// The same for `words` words.
template <Access ACCESS, int CHANNELS, int ROWS>
DEV void low_part(const PreprocessCall& call, const PreprocessImage& image, int y, int first, int words, u32* low) {
    int done = 0;
    NO_UNROLL
    for (; ACCESS != SCATTERED && done + 32 < words; done += 64)
        low_words<ACCESS, CHANNELS, ROWS, 2>(call, image, y, first + 4 * done, low + done);
    NO_UNROLL
    for (; done < words; done += 32) low_words<ACCESS, CHANNELS, ROWS, 1>(call, image, y, first + 4 * done, low + done);
}

// Begins to bring what the warp's rows are made of nearer: `bytes` of each row of the image from byte `first` on. Each row would else
// wait for memory once more. Who reads of the image by other steps than bytes has no use of it.
template <int ROWS> DEV void fetch(const PreprocessCall& call, const PreprocessImage& image, int y, int first, int bytes) {
    const int pairs = (int)image.y_taps, height = (int)image.height;
    const u32* const table = call.tables + image.y_table;
    const int from = (int)table[(y < 0 ? 0 : y) * (1 + pairs)];
    const int behind = (int)table[((y + ROWS < height ? y + ROWS : height) - 1) * (1 + pairs)] + 2 * pairs;
    // Each thread a piece of every eighth row.
    const u8* const samples = (const u8*)image.samples + first;
    NO_UNROLL
    for (int row = from + (int)(threadIdx.x >> 2); row < behind; row += 8) {
        const u8* const at = moved(samples, row, image.step_y);
        NO_UNROLL
        for (int piece = 64 * (int)(threadIdx.x & 3); piece < bytes; piece += 256) prefetch(at + piece);
    }
}

// Adds four columns, which begin at `words`, in each channel.
DEV void add_columns(const u32* words, u32 first, u32 second, int (&sum)[1]) {
    const u32 four = words[0];
    sum[0] = dot_upper(second, four, dot_lower(first, four, sum[0]));
}
DEV void add_columns(const u32* words, u32 first, u32 second, int (&sum)[3]) {
    // r g b r, g b r g, b r g b.
    const u32 a = words[0], b = words[1], c = words[2];
    const u32 early = __byte_perm(a, b, 0x4130), late = __byte_perm(b, c, 0x6352);
    const u32 blue = __byte_perm(__byte_perm(a, b, 0x0052), c, 0x7410);
    sum[0] = dot_lower(second, late, dot_lower(first, early, sum[0]));
    sum[1] = dot_upper(second, late, dot_upper(first, early, sum[1]));
    sum[2] = dot_upper(second, blue, dot_lower(first, blue, sum[2]));
}

// The rows of this thread's column from (x, y) of the part that the image fills on, made of what lies in `low`, its warp's part of shared
// memory; FEW: that has room for all columns of the tile at once. Of the tile, the image fills columns from `x_first` to `x_last`. Who is
// outside makes the nearest pixel that is inside, so that a warp does everything together.
template <int CHANNELS, int ROWS, bool FEW>
DEV void plain_pixels(const PreprocessCall& call, const PreprocessImage& image, int x, int y, int x_first, int x_last, u32* low,
                      int (&pixel)[ROWS][CHANNELS]) {
    constexpr int COLUMNS = 4 * PLAIN_WORDS / CHANNELS;
    const u32* const tables = call.tables;
    const u32 table = image.x_table, width = image.width;
    const int bits = (int)image.x_bits, reach = 4 * (int)image.x_taps, columns = (int)image.columns;
    x = within(x, x_first, x_last);
    const int x_start = (int)tables[table + (u32)x], x_end = x_start + reach;
    // Beyond the image's last columns nothing counts.
    const int most = (int)tables[table + (u32)x_last] + reach, whole = columns + 3 & ~3, end = most < whole ? most : whole;
    const bool beside = image.step_x == CHANNELS && (CHANNELS == 1 || image.step_channel == 1);
    const bool aligned = ((u32)(u64)image.samples & 3 | (u32)image.step_y & 3) == 0;
    const auto begin = [&] {
        UNROLL
        for (int r = 0; r < ROWS; ++r)
            for (int k = 0; k < CHANNELS; ++k) pixel[r][k] = 1 << (bits - 1);
    };
    int first = (int)tables[table + (u32)x_first];
    if (beside) fetch<ROWS>(call, image, y, first * CHANNELS, (end - first) * CHANNELS);
    if (!FEW) begin();
    do {
        const int words = ((!FEW && end - first > COLUMNS ? COLUMNS : end - first) >> 2) * CHANNELS;
        if (!beside) low_part<SCATTERED, CHANNELS, ROWS>(call, image, y, first * CHANNELS, words, low);
        else if (aligned) low_part<ALIGNED, CHANNELS, ROWS>(call, image, y, first * CHANNELS, words, low);
        else low_part<SHIFTED, CHANNELS, ROWS>(call, image, y, first * CHANNELS, words, low);
        __syncwarp();
        // Only now, so that there are fewer registers at once.
        if (FEW) begin();
        const int from = x_start > first ? x_start : first, to = x_end < first + COLUMNS ? x_end : first + COLUMNS;
        const u32* weights = tables + (table + width + (u32)x + (u32)(from - x_start) / 2 * width);
        const u32* four = low + (from - first >> 2) * CHANNELS;
        NO_UNROLL
        for (int at = from; at < to; at += 4) {
            const u32 early = weights[0], late = weights[width];
            UNROLL
            for (int r = 0; r < ROWS; ++r) add_columns(four + r * PLAIN_WORDS, early, late, pixel[r]);
            weights += 2 * width;
            four += CHANNELS;
        }
        __syncwarp();
        first += COLUMNS;
    } while (!FEW && first < end);
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
        const u32 two = bytes_of(pixel[r][CHANNELS / 2] >> bits, pixel[r][0] >> bits, 0);
        if (CHANNELS == 3) pixel[r][CHANNELS - 1] = (int)(bytes_of(0, pixel[r][CHANNELS - 1] >> bits, 0));
        pixel[r][CHANNELS / 2] = (int)(two >> 8 & 255);
        pixel[r][0] = (int)(two & 255);
    }
}

// The same where one pixel makes one.
template <int FLAT, int ROWS>
DEV void copied_pixels(const PreprocessCall& call, const PreprocessImage& image, int x, int y, int x_first, int x_last,
                       int (&pixel)[ROWS][FLAT]) {
    const u8* const samples =
        (const u8*)image.samples + (i64)call.tables[image.x_table + within(x, x_first, x_last)] * image.step_x;
    UNROLL
    for (int r = 0; r < ROWS; ++r) {
        const u32 row = call.tables[image.y_table + within(y + r, 0, (int)image.height - 1)];
        const u8* const at = samples + (i64)row * image.step_y;
        for (int k = 0; k < FLAT; ++k) pixel[r][k] = at[k * image.step_channel];
    }
}

// Writes the pixels of a thread: its first one's first value is at `first` of all items, and `rows` of them are in the item; ALL: all are.
template <class Element, class Number, int FLAT, int ROWS, bool ALL>
DEV void write_pixels(const PreprocessCall& call, u64 first, int rows, const int (&pixel)[ROWS][FLAT]) {
    const u32 to_channel = call.interleaved ? 1 : call.width * call.height;
    const u32 to_row = call.interleaved ? call.width * call.depth : call.width;
    UNROLL
    for (u32 k = 0; k < 3; ++k) {
        // Colour does not become grey here.
        if (FLAT == 1 && k >= call.depth) break;
        // Blue first, where it is so.
        const u32 channel = FLAT == 3 && call.swapped ? 2 - k : k;
        const Number number(call, channel);
        Element* at = (Element*)call.items + first + channel * to_channel;
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const float value = (float)pixel[r][k * FLAT / 3];
            if (ALL || r < rows) store(at, value, number.of(value));
            at += to_row;
        }
    }
}

template <class Element, class Number, int FLAT, int ROWS>
DEV void write_pixels(const PreprocessCall& call, u64 first, int rows, const int (&pixel)[ROWS][FLAT]) {
    if (rows >= ROWS) write_pixels<Element, Number, FLAT, ROWS, true>(call, first, rows, pixel);
    else write_pixels<Element, Number, FLAT, ROWS, false>(call, first, rows, pixel);
}

template <int FLAT, class Number, int ROWS, bool FEW> DEV void plain_tile(const PreprocessCall& call, const PreprocessImage& image, u32* low) {
    const int item_x = (int)(blockIdx.x * PLAIN_WIDTH + threadIdx.x);
    const int item_y = (int)((blockIdx.y * blockDim.y + threadIdx.y) * ROWS);
    const int x = item_x - (int)image.left, y = item_y - (int)image.top;
    // The columns of the tile that the image fills.
    const int x_left = x - (int)threadIdx.x, x_right = x_left + PLAIN_WIDTH - 1;
    const int x_first = x_left < 0 ? 0 : x_left, x_last = x_right < (int)image.width ? x_right : (int)image.width - 1;
    int pixel[ROWS][FLAT];
    if (x_first <= x_last && y < (int)image.height && y + ROWS > 0) {
        if (!FEW && image.way == COPIED) copied_pixels<FLAT, ROWS>(call, image, x, y, x_first, x_last, pixel);
        else plain_pixels<FLAT, ROWS, FEW>(call, image, x, y, x_first, x_last, low, pixel);
    }
    if (item_x >= (int)call.width) return;
    const bool beside = x < 0 || x >= (int)image.width;
    if (beside || y < 0 || y + ROWS > (int)image.height) {
        UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (!beside && y + r >= 0 && y + r < (int)image.height) continue;
            for (int k = 0; k < FLAT; ++k) pixel[r][k] = (int)call.pad;
        }
    }
    // An item has less than 2^32 values.
    const u32 place = (u32)item_y * call.width + (u32)item_x;
    const u64 first = (u64)blockIdx.z * (call.depth * call.width * call.height) + (call.interleaved ? place * call.depth : place);
    const int rows = (int)call.height - item_y;
    switch (call.element) {
        case ELEMENT_F32: write_pixels<float, Number, FLAT, ROWS>(call, first, rows, pixel); break;
        case ELEMENT_F16: write_pixels<Half, Number, FLAT, ROWS>(call, first, rows, pixel); break;
        default: write_pixels<u8, Number, FLAT, ROWS>(call, first, rows, pixel);
    }
}

}  // LOCAL
