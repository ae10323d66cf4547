/*
preprocess: what an image and a batch are, and how a value is stored.
*/
#pragma once
#include "half.cuh"

LOCAL {

typedef long long i64;

// One image. The same struct stands in src/engine/kernels/preprocess.rs.
struct PreprocessImage {
    const void* samples;  // the first channel of the pixel that is seen at the top left
    // To the next sample that is seen to the right, further down, and to the next channel: so memory may be turned, mirrored or
    // in planes.
    int step_x, step_y, step_channel;
    u32 channels;  // 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha; not premultiplied
    u32 way;       // one of Way
    u32 left, top, width, height;  // the part of the item that it fills
    // Of each axis, of which n pixels are filled: the first of `taps` pixels of the image for each, then [taps, n] weights, f32. What
    // is RESAMPLED has others, and of `taps` fours of columns and pairs of rows: see preprocess_plain.cuh.
    u32 x_table, x_taps, x_bits, y_table, y_taps, y_bits;
    u32 columns;   // of the image
};

// How an image is read. What is RESAMPLED, NARROW, COPIED or FINISHED is plain: it has bytes, of 1 channel or of 3.
enum Way { BYTES = 0, WORDS = 1, RESAMPLED = 2, NARROW = 3, COPIED = 4, FINISHED = 5 };

enum ElementType { ELEMENT_F32 = 0, ELEMENT_F16 = 1, ELEMENT_U8 = 2 };

// A batch. The same struct stands in src/engine/kernels/preprocess.rs.
struct PreprocessCall {
    const PreprocessImage* images;
    const u32* tables;
    void* items;
    u32 width, height;
    u32 depth;         // 1 grey, 3 colour
    u32 swapped;       // blue, green, red
    u32 interleaved;   // channels last
    u32 element;
    u32 background[3]; // what shines through: red, green, blue, 0 to 255
    float pad;         // around the image, 0 to 255
    float scale;
    float mean[3], std[3];
    float inverse[3];  // 1 / std
};

// (value * scale - mean) / std of a channel, the quotient rounded as a division rounds it: what is left of the first guess makes it exact
// (Markstein 1990), where nothing leaves a number's range.
struct Normal {
    float scale, mean, std, inverse;

    MEMBER Normal(const PreprocessCall& call, u32 channel)
        : scale(call.scale), mean(call.mean[channel]), std(call.std[channel]), inverse(call.inverse[channel]) {}
    MEMBER float of(float value) const {
        const float above = product(value, scale) - mean, guess = product(above, inverse);
        return fmaf(fmaf(-guess, std, above), inverse, guess);
    }
};

// The same in one step, to 2e-7 of the largest of both sides of the difference: for pixels that are rounded before, by far more.
struct Nearly {
    float factor, offset;

    MEMBER Nearly(const PreprocessCall& call, u32 channel)
        : factor(product(call.scale, call.inverse[channel])), offset(-product(call.mean[channel], call.inverse[channel])) {}
    MEMBER float of(float value) const { return fmaf(value, factor, offset); }
};

// A value of an item, and the number that becomes of it: bytes are stored as they are.
DEV void store(float* at, float, float number) { *at = number; }
DEV void store(Half* at, float, float number) { *at = half_of(number); }
DEV void store(u8* at, float value, float) { *at = (u8)floorf(value + 0.5f); }

}  // LOCAL
