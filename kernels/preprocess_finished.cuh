/*
preprocess_finished: images of bytes that have the item's size and channels already, as they lie in memory: only numbers are made of
them, as of pixels that the server put together itself.

  block   32 x 8 threads; each makes numbers of 4 pixels that lie side by side, which are 1 or 3 words of memory
  grid    pixels of an item / 1024, rounded up, by 1, by count (at most 65535)

An item has a multiple of 4 pixels, and begins at a multiple of 4 bytes.

Floor, per image of 224 x 224 RGB to f32: 0.15 + 0.60 MB, at 4.2 TB/s (what a copy on an H200 reads and writes) 0.18 us, so 5.6 M
images/s. Instructions of a warp for 128 pixels: about 9 for each of 12 values, 20 beside: 128, 392 times for an image; 1.05 T/s of
them would make 21 M images/s. An H200 makes 4.9 to 5.0 M.
*/
#pragma once
#include "preprocess.cuh"

LOCAL {

// Four elements, which are written at once.
template <class Element> struct alignas(4 * sizeof(Element)) Four {
    Element of[4];
};

// Four pixels of an item, of which `quad` come before. Their elements go to `to`: channel by channel, or pixel by pixel.
template <class Element, int DEPTH> DEV void finished_pixels(const PreprocessCall& call, const u32* words, u32 quad, Element* to) {
    u32 four[DEPTH];
    UNROLL
    for (int i = 0; i < DEPTH; ++i) four[i] = words[quad * DEPTH + i];
    const u32 plane = call.width * call.height;
    UNROLL
    for (int group = 0; group < DEPTH; ++group) {
        Four<Element> out;
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const int pixel = call.interleaved ? (4 * group + i) / DEPTH : i;
            const int channel = call.interleaved ? (4 * group + i) % DEPTH : group;
            // Blue first, where it is so.
            const int byte = pixel * DEPTH + (call.swapped ? DEPTH - 1 - channel : channel);
            const float value = (float)(four[byte / 4] >> byte % 4 * 8 & 255);
            store(&out.of[i], value, Normal(call, (u32)channel).of(value));
        }
        const u32 place = call.interleaved ? 4 * (quad * DEPTH + (u32)group) : (u32)group * plane + 4 * quad;
        *(Four<Element>*)(to + place) = out;
    }
}

template <class Element> DEV void finished(const PreprocessCall& call, const u32* words, u32 quad) {
    Element* const to = (Element*)call.items + (u64)blockIdx.z * call.depth * call.width * call.height;
    if (call.depth == 1) finished_pixels<Element, 1>(call, words, quad, to);
    else finished_pixels<Element, 3>(call, words, quad, to);
}

}  // LOCAL
