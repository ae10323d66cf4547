/*
postprocess: a model's outputs to what little is answered of them, before they leave the device.

  classify             [items, classes] scores -> the best `top` of each item, after softmax, sigmoid or nothing
  detect_candidates    boxes and scores of [items, anchors] -> those of the score asked for that lie in the image
  detect_suppress      these -> the best that no better one of their class covers
  segment              [items, classes, pixels] or [items, pixels, classes] scores -> the best class of each pixel, u16

src/tasks is the reference, and has the last word: where outputs cannot be answered (a NaN, a box without end, a class that is none), the
item's fault is set, and whoever sees that looks at the outputs there, which says what is wrong. Masks keep the output's own size:
they are spread over the posted image on the host, where less has crossed the link. Calls are the launches' only argument.

  classify             block 128 threads, grid items                 floor 4 bytes a score: 1000 classes 4 KB, 1 G items/s at 4.3 TB/s.
                       Two passes and one for each of the best, which the caches serve: (3 + top) * classes * 12 instructions, 96 k for
                       the best 5 of 1000: at 29.6 T/s 300 M items/s at most; its 10 (3 + top) barriers of 128 threads take 4 us
                       whatever the batch
  detect_candidates    block 128 threads, grid anchors / 128 rounded up by items, a thread per anchor. 4 (4 + classes) bytes each: 8400
                       anchors of 80 classes 2.8 MB, 1.5 M items/s; 5 instructions a score: 8.6 M items/s. Anchors that are
                       neighbours in memory are read together where channels come first
  detect_suppress      block 256 threads, grid items. A pass over the candidates for each detection: 300 of 1000 candidates 300 *
                       4 * 60 instructions a thread and 12 barriers each, about 0.3 ms for one item, as for 132
  segment              block 256 threads, grid pixels / 256 rounded up by items. 4 classes + 2 bytes a pixel: 21 classes 86 B, 50 G
                       pixels/s; 4 instructions a score: 350 G. Where channels come last a warp's lines are read class by class
                       from the first-level cache

4.3 TB/s and 29.6 T instructions/s (132 multiprocessors * 128 lanes * 1.75 GHz) are those of an H200. items are at most 65535.
*/
#include "half.cuh"

LOCAL {

enum NumberType { NUMBER_F32 = 0, NUMBER_F16 = 1, NUMBER_I64 = 2, NUMBER_I32 = 3 };

// A tensor of numbers, or none. The structs of this file stand again in src/engine/kernels/postprocess.rs.
struct Numbers {
    const void* at;
    u32 type;
    u32 unused;

    MEMBER float operator[](u64 i) const {
        switch (type) {
            case NUMBER_F32: return ((const float*)at)[i];
            case NUMBER_F16: return float_of(((const Half*)at)[i]);
            case NUMBER_I64: return (float)((const long long*)at)[i];
            default: return (float)((const int*)at)[i];
        }
    }
};

DEV bool is_nan(float x) { return !(x == x); }
DEV bool is_finite(float x) { return vfinite<float>(x); }

// Greater for the better: of higher scores (of zeros the positive one), then of lower numbers. Never 0 or all ones.
DEV u64 rank_of(float score, u32 number) {
    u32 bits = (u32)vbits(score);
    bits = bits >> 31 ? ~bits : bits | 0x80000000;
    return (u64)bits << 32 | (u32)~number;
}

// ---- classify ----------------------------------------------------------------------------------------------------------

enum Activation { SOFTMAX = 0, SIGMOID = 1, NOTHING = 2 };

struct Scored {
    u32 number;  // of the class; beyond `classes` all ones
    float score;
};

struct ClassifyCall {
    Numbers scores;  // [items, classes]
    u32 classes;
    u32 activation;
    u32 top;         // at least 1
    u32 unused;
    Scored* best;    // [items, top], best first
    u32* faults;     // [items]
};

constexpr u32 CLASSIFY_THREADS = 128;

// Exponentials that are 0 far out, and NaN of it.
DEV float exponential(float x) { return is_nan(x) ? x : x < -87.f ? 0.f : vexp<float>(x); }

DEV float activated(u32 activation, float score, float largest, float per_sum) {
    if (activation == SOFTMAX) return exponential(score - largest) * per_sum;
    if (activation == NOTHING || is_nan(score)) return score;
    // From the side on which the exponential cannot overflow.
    const float e = exponential(-vabs(score));
    return (score >= 0.f ? 1.f : e) / (1.f + e);
}

struct Sum {
    MEMBER static float of(float a, float b) { return a + b; }
    MEMBER static u32 of(u32 a, u32 b) { return a + b; }
};
struct Largest {
    MEMBER static float of(float a, float b) { return a > b ? a : b; }
    MEMBER static u64 of(u64 a, u64 b) { return a > b ? a : b; }
};

// What all threads' values come to; all threads of the block (a power of two) take part and get it.
template <class How, class T> DEV T reduced(T* shared, T own) {
    __syncthreads();
    shared[threadIdx.x] = own;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] = How::of(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    return shared[0];
}

}  // LOCAL

KERNEL(classify, (const __grid_constant__ ClassifyCall call)) {
    __shared__ float floats[CLASSIFY_THREADS];
    __shared__ u64 ranks[CLASSIFY_THREADS];
    const u64 item = blockIdx.x, first = item * call.classes;
    float largest = vfloat_from_bits((int)0xff800000), per_sum = 1.f;
    if (call.activation == SOFTMAX) {
        for (u32 i = threadIdx.x; i < call.classes; i += blockDim.x) largest = Largest::of(call.scores[first + i], largest);
        largest = reduced<Largest>(floats, largest);
        float sum = 0.f;
        for (u32 i = threadIdx.x; i < call.classes; i += blockDim.x) sum += exponential(call.scores[first + i] - largest);
        per_sum = 1.f / reduced<Sum>(floats, sum);
    }
    u64 last = ~(u64)0;
    bool fault = false;
    for (u32 place = 0; place < call.top; ++place) {
        u64 best = 0;
        for (u32 i = threadIdx.x; i < call.classes; i += blockDim.x) {
            const float score = activated(call.activation, call.scores[first + i], largest, per_sum);
            fault = fault || !is_finite(score);
            const u64 rank = rank_of(score, i);
            if (rank < last) best = Largest::of(best, rank);
        }
        last = reduced<Largest>(ranks, best);
        if (threadIdx.x == 0) {
            Scored best = {0xffffffff, 0.f};
            if (last != 0) {
                best.number = ~(u32)last;
                best.score = activated(call.activation, call.scores[first + best.number], largest, per_sum);
            }
            call.best[item * call.top + place] = best;
        }
        if (last == 0) {
            for (u32 rest = place + 1 + threadIdx.x; rest < call.top; rest += blockDim.x)
                call.best[item * call.top + rest] = {0xffffffff, 0.f};
            break;
        }
    }
    const float faults = reduced<Sum>(floats, fault ? 1.f : 0.f);
    if (threadIdx.x == 0) call.faults[item] = faults > 0.f;
}

// ---- detect ------------------------------------------------------------------------------------------------------------

LOCAL {

enum BoxFormat { XYXY = 0, YXYX = 1, CXCYWH = 2, XYWH = 3 };

// Elements from one to the next.
struct Strides {
    u64 item, anchor, channel;
};

// Where an item's image lies in the model's input, along x and y, as in src/image/placement.rs.
struct DetectPlacement {
    double offset[2], resized[2], source[2];
    float size[2];  // of the input, px; where boxes are parts of it
    u32 placed;     // 0: boxes stay as they are
    u32 unused;
};

struct Candidate {
    float corners[4];  // px of the input
    float score;
    u32 label;
    u32 anchor;
    u32 gone;
};

struct Detection {
    float corners[4];  // px of the posted image
    float score;
    u32 label;
};

struct DetectCall {
    Numbers boxes, scores;
    Numbers objectness;  // multiplies the best score; or none
    Numbers labels;      // [items, anchors] class numbers for scores of one channel; or none
    Numbers counts;      // [items] of anchors that are valid; or none
    Strides boxes_by, scores_by, objectness_by;
    u32 anchors, classes;
    float first_class;   // the class number of the first label
    u32 format;
    u32 normalized;      // corners are parts of the input's size
    float score_min, iou_max;
    u32 detections_max;
    u32 candidates_max;  // places for each item; one that has more has a fault
    u32 unused;
    const DetectPlacement* placements;  // [items]
    Candidate* candidates;              // [items, candidates_max]
    u32* candidate_counts;              // [items], 0 before
    Detection* detections;              // [items, detections_max]
    u32* detection_counts;              // [items]
    u32* faults;                        // [items], 0 before
};

// Candidates that are looked at, the best ones. The same number stands in src/tasks/nms.rs.
constexpr u32 CANDIDATES_LOOKED_AT = 30000;
constexpr u32 SUPPRESS_THREADS = 256;

DEV void corners_of(const DetectCall& call, const DetectPlacement& placement, const float (&box)[4], float (&corners)[4]) {
    const float a = box[0], b = box[1], c = box[2], d = box[3];
    switch (call.format) {
        case XYXY: corners[0] = a, corners[1] = b, corners[2] = c, corners[3] = d; break;
        case YXYX: corners[0] = b, corners[1] = a, corners[2] = d, corners[3] = c; break;
        case CXCYWH:
            corners[0] = a - c / 2.f, corners[1] = b - d / 2.f, corners[2] = a + c / 2.f, corners[3] = b + d / 2.f;
            break;
        default: corners[0] = a, corners[1] = b, corners[2] = a + c, corners[3] = b + d;
    }
    if (!call.normalized) return;
    for (int k = 0; k < 4; ++k) corners[k] = product(corners[k], placement.size[k % 2]);
}

// To pixels of the posted image, held to it. Returns whether anything is left.
DEV bool place(const DetectPlacement& placement, const float (&corners)[4], float (&placed)[4]) {
    for (int k = 0; k < 4; ++k) {
        placed[k] = corners[k];
        if (!placement.placed) continue;
        const double source = placement.source[k % 2];
        const double at = ((double)corners[k] - placement.offset[k % 2]) / placement.resized[k % 2] * source;
        placed[k] = (float)(at < 0. ? 0. : at > source ? source : at);
    }
    return placed[0] < placed[2] && placed[1] < placed[3];
}

DEV float area(float x0, float y0, float x1, float y1) {
    const float width = x1 - x0, height = y1 - y0;
    return product(width > 0.f ? width : 0.f, height > 0.f ? height : 0.f);
}

// Intersection over union; 0 where both are empty.
DEV float overlap(const float (&a)[4], const float (&b)[4]) {
    const float shared = area(a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1], a[2] < b[2] ? a[2] : b[2],
                              a[3] < b[3] ? a[3] : b[3]);
    const float both = area(a[0], a[1], a[2], a[3]) + area(b[0], b[1], b[2], b[3]) - shared;
    return both > 0.f ? shared / both : 0.f;
}

}  // LOCAL

KERNEL(detect_candidates, (const __grid_constant__ DetectCall call)) {
    const u32 anchor = blockIdx.x * blockDim.x + threadIdx.x;
    const u64 item = blockIdx.y;
    if (anchor >= call.anchors) return;
    // Every number is looked at, used or not: with a NaN the model has not understood its input.
    bool fault = false;
    float box[4];
    for (int k = 0; k < 4; ++k) {
        box[k] = call.boxes[item * call.boxes_by.item + anchor * call.boxes_by.anchor + k * call.boxes_by.channel];
        fault = fault || is_nan(box[k]);
    }
    float score = vfloat_from_bits((int)0xff800000);
    u32 label = 0;
    const u64 scores = item * call.scores_by.item + anchor * call.scores_by.anchor;
    for (u32 k = 0; k < call.classes; ++k) {
        const float own = call.scores[scores + k * call.scores_by.channel];
        fault = fault || is_nan(own);
        if (own > score) score = own, label = k;
    }
    if (call.objectness.at) {
        const float objectness = call.objectness[item * call.objectness_by.item + anchor * call.objectness_by.anchor];
        fault = fault || is_nan(objectness);
        score = product(score, objectness);
    }
    bool labelled = true;
    if (call.labels.at) {
        const float number = call.labels[item * call.anchors + anchor] - call.first_class;
        fault = fault || is_nan(number);
        labelled = number >= 0.f && number < 1e6f && floorf(number) == number;
        label = labelled ? (u32)number : 0;
    }
    u32 valid = call.anchors;
    if (call.counts.at) {
        const float count = call.counts[item];
        if (!(count >= 0.f) || floorf(count) != count) fault = true;
        else if (count < (float)valid) valid = (u32)count;
    }
    if (score >= call.score_min && anchor < valid) {
        fault = fault || !labelled;
        for (int k = 0; k < 4; ++k) fault = fault || !is_finite(box[k]);
        const DetectPlacement placement = call.placements[item];
        Candidate candidate = {};
        float placed[4];
        corners_of(call, placement, box, candidate.corners);
        if (place(placement, candidate.corners, placed)) {
            candidate.score = score;
            candidate.label = label;
            candidate.anchor = anchor;
            const u32 at = atomicAdd(&call.candidate_counts[item], (u32)1);
            if (at < call.candidates_max) call.candidates[item * call.candidates_max + at] = candidate;
            else fault = true;
        }
    }
    if (fault) call.faults[item] = 1;
}

KERNEL_OF(detect_suppress, 256, (const __grid_constant__ DetectCall call)) {
    __shared__ u64 ranks[SUPPRESS_THREADS];
    __shared__ u32 numbers[SUPPRESS_THREADS];
    __shared__ Candidate best;
    const u64 item = blockIdx.x;
    const u32 found = call.candidate_counts[item], count = found < call.candidates_max ? found : call.candidates_max;
    Candidate* candidates = call.candidates + item * call.candidates_max;
    u32 kept = 0;
    u64 last = ~(u64)0;
    while (kept < call.detections_max) {
        u64 own = 0;
        u32 where = 0;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const u64 rank = rank_of(candidates[i].score, candidates[i].anchor);
            if (!candidates[i].gone && rank < last && rank > own) own = rank, where = i;
        }
        last = reduced<Largest>(ranks, own);
        if (last == 0) break;
        if (count > CANDIDATES_LOOKED_AT) {
            u32 better = 0;
            for (u32 i = threadIdx.x; i < count; i += blockDim.x)
                better += rank_of(candidates[i].score, candidates[i].anchor) > last;
            if (reduced<Sum>(numbers, better) >= CANDIDATES_LOOKED_AT) break;
        }
        // Ranks are of one candidate each.
        if (own == last) {
            best = candidates[where];
            Detection detection;
            place(call.placements[item], best.corners, detection.corners);
            detection.score = best.score;
            detection.label = best.label;
            call.detections[item * call.detections_max + kept] = detection;
        }
        __syncthreads();
        ++kept;
        for (u32 i = threadIdx.x; call.iou_max < 1.f && i < count; i += blockDim.x)
            if (candidates[i].label == best.label && overlap(best.corners, candidates[i].corners) > call.iou_max)
                candidates[i].gone = 1;
    }
    if (threadIdx.x == 0) call.detection_counts[item] = kept;
}

// ---- segment -----------------------------------------------------------------------------------------------------------

LOCAL {

struct SegmentCall {
    Numbers scores;  // [items, classes, pixels], or with `last` [items, pixels, classes]
    u64 pixels;
    u32 classes;     // 1 to 65536
    u32 last;
    float threshold; // for one class: 1 from here on, 0 below
    u32 unused;
    u16* best;       // [items, pixels]; the first of equals
    u32* faults;     // [items], 0 before
};

}  // LOCAL

KERNEL_OF(segment, 256, (const __grid_constant__ SegmentCall call)) {
    const u64 pixel = (u64)blockIdx.x * blockDim.x + threadIdx.x, item = blockIdx.y;
    if (pixel >= call.pixels) return;
    const u64 first = item * call.pixels * call.classes + (call.last ? pixel * call.classes : pixel);
    const u64 next = call.last ? 1 : call.pixels;
    float highest = call.scores[first];
    bool fault = is_nan(highest);
    u32 found = 0;
    for (u32 k = 1; k < call.classes; ++k) {
        const float score = call.scores[first + k * next];
        fault = fault || is_nan(score);
        if (score > highest) highest = score, found = k;
    }
    if (call.classes == 1) found = highest >= call.threshold;
    call.best[item * call.pixels + pixel] = (u16)found;
    if (fault) call.faults[item] = 1;
}
