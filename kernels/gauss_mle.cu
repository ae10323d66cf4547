/*
gauss_mle: fits one Gaussian spot per ROI by Poisson maximum likelihood.

  in   rois      [count, side, side]  u16 or f32  ADU, row-major
  in   corners   [count, 2]           u32         x, y of the ROI's first pixel on the sensor; with maps only
  in   maps      [height, width] x 3  f32         gain, bias and variance as in FitSetup (likelihood.cuh); or none
  out  fits      [count, columns]     f32         a row for each fit, see FitRow
  out  codes     [count, 2]           u8          evaluations (255: or more), and how the fit ended

A lane is one ROI. `Fit` (fit.cuh) is the only implementation; the entries at the end, for the device and for the host,
differ in nothing but where a lane's ROI comes from and in what a lane does when its fit is done.

On the device a launch is a round: fit_MODEL_ADU[_maps](FitCall, FitRound). Fits take from 3 to 60 evaluations of the model, and a
warp takes as long as its slowest. So in the first round each fit gets a few evaluations, those that are not done are put aside
side by side, and the next round goes on with those alone; the last round has no limit. Three rounds of 6, 10 and all the rest
are good; so is one, for some thousand ROIs. Nothing of the result depends on the rounds.

  block   64 threads, a thread per ROI. It shares a tile of ROIs: T of them, T at most the threads and a multiple of 8.
          `rois` is aligned to 16 bytes.
  grid    as many blocks as all multiprocessors hold, or count / T if that is less: each takes tile after tile.
  shared  T times the bytes of a ROI, rounded up to 16, + T * 4 * (2 * F * side + 1), with F = 2 for xynb, else 3. A ROI has
          2 * side^2 bytes as u16, 4 * side^2 as f32, 8 * side^2 with maps. T = 64: 13.6 KB for xynb with 7 x 7 u16, 32.8 KB for
          xynbs with 11 x 11 u16, 79.4 KB for that with maps, where T = 32 is better. Take the largest T that lets 8 warps
          stay on a multiprocessor. Beside it 0.6 KB, static.

Why so: a tile comes in with the widest loads there are, one after the other, and then serves all evaluations of its fits; side^2
is odd, so that threads which read the same pixel of their f32 ROIs meet no bank twice (u16: twice at most). The factors of
the axes are computed once per evaluation and lie beside, since a thread has no fast memory that it can index. Copies
need not be doubled by hand: several blocks are on a multiprocessor, and while one waits another computes.

Results leave as they are sent: rows of 11 to 15 words, which a thread writes one after the other. That touches lines that
its neighbours touch too, and is nothing against thousands of operations per word.

Floor, per fit: bytes 2 side^2 + 4 columns + 2 as u16, so 144 B for xynb 7 x 7 and 296 B for xynbs 11 x 11: at 4.3 TB/s 30 G/s
and 14 G/s. Operations: an
evaluation is side^2 * (16 to 22 for sums, 20 for the logarithm, 8 for the reciprocal and the load), 2 (side + 1) * 50 for the
axes, and 200 to 600 for the step: 3.3 k and 8.5 k instructions for xynb 7 x 7 and xynbs 11 x 11; with 5 and 6 evaluations, an
estimate and a p-value (about one each) 20 k and 65 k per fit. 132 multiprocessors issuing 128 lanes at 1.75 GHz make
29.6 T/s: 1.5 G/s and 0.45 G/s at most. Compute it is that limits, not memory.
*/
#include "fit.cuh"
#include "goodness.cuh"

LOCAL {

// One fit as it leaves, but for its codes. `Columns` of src/engine/kernels/fit.rs has the same order.
template <int MODEL> struct FitRow {
    static constexpr int COUNT = Parameters<MODEL>::COUNT;
    static constexpr int COVARIANCES = MODEL == XYZNB ? 3 : 1;
    float theta[COUNT];  // in the order of the model, positions relative to the ROI's first pixel
    float error[COUNT];  // Cramer-Rao standard deviations, like theta
    float covariance[COVARIANCES];  // xy; xz, yz
    float log_likelihood_ratio;
    float p_value;
};

// What a call works on. The same struct stands in src/engine/kernels/fit.rs.
struct FitCall {
    FitSetup setup;
    const void* rois;
    const u32* corners;
    const float* gain_map;
    const float* bias_map;
    const float* variance_map;
    u64 map_width;
    u64 count;
    float* fits;
    u8* codes;
};

// Where the row of fit i stands.
template <int MODEL> DEV FitRow<MODEL>& row_of(const FitCall& call, u64 i) { return ((FitRow<MODEL>*)call.fits)[i]; }

#if ON_DEVICE
#define NAN_VALUE vfloat_from_bits(0x7fc00000)
#else
#define NAN_VALUE __builtin_nanf("")
#endif

// Writes what is known of fit i when it ends, which is all but its p-value. What is no measurement has no numbers.
template <int MODEL>
DEV FitRow<MODEL>& put(const FitCall& call, u64 i, const float* theta, const float* error, const float* covariance,
                       float deviance, int evaluations, int status) {
    FitRow<MODEL>& row = row_of<MODEL>(call, i);
    const bool bad = status == BAD_INPUT;
    const float nothing = NAN_VALUE;
    for (int k = 0; k < FitRow<MODEL>::COUNT; ++k) {
        row.theta[k] = bad ? nothing : theta[k];
        row.error[k] = bad ? nothing : error[k];
    }
    for (int k = 0; k < FitRow<MODEL>::COVARIANCES; ++k) row.covariance[k] = bad ? nothing : covariance[k];
    // Of a perfect fit rounding may leave less than nothing.
    row.log_likelihood_ratio = bad ? nothing : deviance > 0.f ? -deviance : 0.f;
    call.codes[2 * i] = (u8)(evaluations < 255 ? evaluations : 255);
    call.codes[2 * i + 1] = (u8)status;
    return row;
}

// Electrons beyond this are no measurement; also what NaN and infinities are found by.
constexpr float ELECTRONS_MAX = 1e9f;

// ---- where a lane's ROI comes from -------------------------------------------------------------------------------

#if ON_DEVICE

// What a round works on. The device's alone.
struct FitRound {
    // Fits that go on, [1 + Fit::WORDS, places]: the ROI's number, then its state. Null in the first round.
    const u32* begun;
    const u64* begun_count;  // how many they are; in the first round how many of call.count ROIs there are, or null: all
    u32* unfinished;         // where those go that are not done after this round, as `begun`; null in the last
    u64* unfinished_count;   // 0 before. What goes beyond `places` is counted, but done in this round nevertheless
    u64 places;
    u32 evaluations;         // that a fit gets in this round, at least 1
    u32 tile;                // ROIs that a block shares
};

// A ROI in shared memory: as it came, converted when read; with maps converted before.
template <class Stored, bool MAPS> struct DeviceRoi {
    const Stored* data;
    const float* readout;
    float* axes;
    float gain, bias;
    int side;

    MEMBER float converted(int j) const { return MAPS ? (float)data[j] : (float)data[j] * gain + bias; }
    MEMBER float electrons(int j) const { return vmax(converted(j), DATA_MIN); }
    MEMBER float variance(int j) const { return MAPS ? readout[j] : 0.f; }
    template <bool WIDTHS> MEMBER Axis<float, WIDTHS, Placed> axis(int n) const {
        Axis<float, WIDTHS, Placed> placed;
        placed.factors.values = axes + n * factors_of(WIDTHS) * side;
        return placed;
    }
};

template <bool MAPS, class Adu> struct StoredAs {
    typedef Adu Type;
};
template <class Adu> struct StoredAs<true, Adu> {
    typedef float Type;
};

struct SaveWords {
    u32* at;
    u64 places;
    MEMBER void word(u32 bits) {
        *at = bits;
        at += places;
    }
    MEMBER void operator()(float& x) { word((u32)vbits(x)); }
    MEMBER void operator()(int& x) { word((u32)x); }
    MEMBER void operator()(bool& x) { word(x); }
};

struct LoadWords {
    const u32* at;
    u64 places;
    MEMBER u32 word() {
        const u32 bits = *at;
        at += places;
        return bits;
    }
    MEMBER void operator()(float& x) { x = vfloat_from_bits((int)word()); }
    MEMBER void operator()(int& x) { x = (int)word(); }
    MEMBER void operator()(bool& x) { x = word() != 0; }
};

// k / d for k d < 2^32, where `magic` is 2^32 / d + 1: a division costs as much as a pixel.
DEV u32 divided(u32 k, u32 magic) { return (u32)(((u64)k * magic) >> 32); }
DEV u32 magic_of(u32 d) { return (u32)(0x100000000ull / d) + 1; }

// Brings `count` ROIs in, from number `first` of the round on. All threads of the block take part.
template <bool MAPS, class Adu>
DEV void load_tile(const FitCall& call, const FitRound& round, u64 first, u32 count, typename StoredAs<MAPS, Adu>::Type* data,
                   float* readout) {
    const u32 side = (u32)call.setup.side, pixels = side * side, samples = count * pixels;
    const Adu* rois = (const Adu*)call.rois;
    if (!MAPS && !round.begun) {
        // One piece of memory, which begins at a multiple of 16 bytes.
        const u32 pieces = samples * (u32)sizeof(Adu) / 16, rest = pieces * 16 / (u32)sizeof(Adu);
        const Piece* from = (const Piece*)(rois + first * pixels);
        for (u32 k = threadIdx.x; k < pieces; k += blockDim.x) ((Piece*)data)[k] = from[k];
        for (u32 k = rest + threadIdx.x; k < samples; k += blockDim.x) ((Adu*)data)[k] = rois[first * pixels + k];
        return;
    }
    const u32 per_pixels = magic_of(pixels), per_side = magic_of(side);
    for (u32 k = threadIdx.x; k < samples; k += blockDim.x) {
        const u32 slot = divided(k, per_pixels), j = k - slot * pixels;
        const u64 roi = round.begun ? round.begun[first + slot] : first + slot;
        const Adu adu = rois[roi * pixels + j];
        if (MAPS) {
            const u32 r = divided(j, per_side), c = j - r * side;
            const u64 at = (call.corners[2 * roi + 1] + r) * call.map_width + call.corners[2 * roi] + c;
            ((float*)data)[k] = (float)adu * call.gain_map[at] + call.bias_map[at];
            readout[k] = call.variance_map[at];
        } else {
            ((Adu*)data)[k] = adu;
        }
    }
}

// The end of a fit.
template <int MODEL, bool MAPS, class Roi>
DEV void finish(const FitCall& call, const Roi& roi, Fit<MODEL, MAPS, float>& fit, u64 i) {
    float error[Parameters<MODEL>::COUNT], covariance[3];
    fit.errors(error, covariance);
    FitRow<MODEL>& row = put<MODEL>(call, i, fit.theta, error, covariance, fit.deviance, fit.evaluations, fit.status);
    row.p_value = fit.status == BAD_INPUT ? NAN_VALUE : p_value<MODEL, MAPS>(call.setup, roi, fit.theta, fit.deviance);
}

template <int MODEL, bool MAPS, class Adu> DEV void fit_on_device(const FitCall& call, const FitRound& round) {
    typedef typename StoredAs<MAPS, Adu>::Type Stored;
    typedef Parameters<MODEL> Is;
    const FitSetup& setup = call.setup;
    const u32 pixels = (u32)(setup.side * setup.side), tile = round.tile;
    // Odd, so that threads meet no bank twice.
    const u32 axes_words = 2 * factors_of(Is::SHAPES > 0) * (u32)setup.side + 1;
    SHARED_BYTES(shared);
    Stored* data = (Stored*)shared;
    float* readout = (float*)(shared + (tile * pixels * (u32)sizeof(Stored) + 15) / 16 * 16);
    float* axes = readout + (MAPS ? tile * pixels : 0);
    // The same for all ROIs, so one thread prepares it while the others bring in the first tile.
    __shared__ Start<MODEL, float> start;
    __shared__ u32 waiting;  // fits of this tile that are to be put aside
    __shared__ u64 place;    // of the first of them
    if (threadIdx.x == 0) start.prepare(setup);

    u64 total = round.begun_count ? *round.begun_count : call.count;
    const u64 places = round.begun ? round.places : call.count;
    if (total > places) total = places;
    for (u64 first = (u64)blockIdx.x * tile; first < total; first += (u64)gridDim.x * tile) {
        const u32 count = total - first < tile ? (u32)(total - first) : tile;
        const bool mine = threadIdx.x < count;
        load_tile<MAPS, Adu>(call, round, first, count, data, readout);
        if (threadIdx.x == 0) waiting = 0;
        __syncthreads();

        DeviceRoi<Stored, MAPS> roi;
        roi.data = data + (mine ? threadIdx.x : 0) * pixels;
        roi.readout = readout + (mine ? threadIdx.x : 0) * pixels;
        roi.axes = axes + (mine ? threadIdx.x : 0) * axes_words;
        roi.gain = setup.gain;
        roi.bias = setup.bias;
        roi.side = setup.side;
        u64 i = first + threadIdx.x;
        Fit<MODEL, MAPS, float> fit;
        fit.clear();
        if (mine && round.begun) {
            LoadWords load = {round.begun + i, round.places};
            i = load.word();
            fit.words(load);
            fit.active = true;
        } else if (mine) {
            bool bad = false;
            for (u32 j = 0; j < pixels; ++j) bad = bad | !(vabs(roi.converted((int)j)) <= ELECTRONS_MAX);
            fit.begin(setup, start, roi, true, bad);
        }

        bool aside = false;
        u32 left = round.unfinished ? round.evaluations : 0xffffffff;
        for (;;) {
            for (; fit.active && left > 0; --left) fit.advance(setup, roi);
            u32 rank = 0;
            if (fit.active) rank = atomicAdd(&waiting, (u32)1);
            __syncthreads();
            const u32 asked = waiting;
            if (asked == 0) break;
            if (threadIdx.x == 0) place = atomicAdd(round.unfinished_count, (u64)asked);
            __syncthreads();
            const u64 base = place;
            if (fit.active && base + rank < round.places) {
                SaveWords save = {round.unfinished + base + rank, round.places};
                save.word((u32)i);
                fit.words(save);
                fit.active = false;
                aside = true;
            }
            if (base + asked <= round.places) break;
            // No place is left: what is active goes on to its end.
            left = 0xffffffff;
            __syncthreads();
            if (threadIdx.x == 0) waiting = 0;
            __syncthreads();
        }
        if (mine && !aside) finish<MODEL, MAPS>(call, roi, fit, i);
        __syncthreads();
    }
}

#define FIT_KERNEL(name, MODEL, MAPS, ADU)                                                                     \
    KERNEL_OF(fit_##name, 64, (const __grid_constant__ FitCall call, const __grid_constant__ FitRound round)) { \
        fit_on_device<MODEL, MAPS, ADU>(call, round);                                                          \
    }
#define FIT_KERNELS(name, MODEL)                                                                               \
    FIT_KERNEL(name##_u16, MODEL, false, u16)                                                                  \
    FIT_KERNEL(name##_u16_maps, MODEL, true, u16)                                                              \
    FIT_KERNEL(name##_f32, MODEL, false, float)                                                                \
    FIT_KERNEL(name##_f32_maps, MODEL, true, float)

}  // LOCAL

// A model's kernels are a module of their own, made with FIT_MODELS as one of these: a driver compiles a module as a whole when it
// is loaded, and most who fit use one model.
#ifndef FIT_MODELS
#define FIT_MODELS FIT_KERNELS(xynb, XYNB) FIT_KERNELS(xynbs, XYNBS) FIT_KERNELS(xynbsxsy, XYNBSXSY) FIT_KERNELS(xyznb, XYZNB)
#endif
FIT_MODELS

#else

// The ROIs of all lanes, transposed: pixel j of all lanes stands together.
template <bool MAPS> struct Tile {
    Floats data[SIDE_MAX * SIDE_MAX];
    Floats readout[MAPS ? SIDE_MAX * SIDE_MAX : 1];
    MEMBER Floats electrons(int j) const { return data[j]; }
    MEMBER Floats variance(int j) const { return readout[MAPS ? j : 0]; }
    template <bool WIDTHS> MEMBER Axis<Floats, WIDTHS> axis(int) const {
        Axis<Floats, WIDTHS> fresh;
        return fresh;
    }

    // Puts ROI i into a lane. Returns whether it is no measurement.
    bool load(const FitCall& call, bool wide, u64 i, int lane) {
        return wide ? load_as<float>(call, i, lane) : load_as<u16>(call, i, lane);
    }

    template <class Adu> bool load_as(const FitCall& call, u64 i, int lane) {
        const FitSetup& setup = call.setup;
        const int side = setup.side, pixels = side * side;
        const Adu* adu = (const Adu*)call.rois + i * pixels;
        float converted[SIDE_MAX * SIDE_MAX];
        if (MAPS) {
            load_variance(call, i, lane);
            const u64 corner = corner_of(call, i);
            for (int r = 0; r < side; ++r) {
                const u64 row = corner + r * call.map_width;
                for (int c = 0; c < side; ++c)
                    converted[r * side + c] =
                        (float)adu[r * side + c] * call.gain_map[row + c] + call.bias_map[row + c];
            }
        } else {
            const float gain = setup.gain, bias = setup.bias;
            for (int j = 0; j < pixels; ++j) converted[j] = (float)adu[j] * gain + bias;
        }
        float* column = (float*)data + lane;
        int wrong = 0;
        for (int j = 0; j < pixels; ++j) {
            const float value = converted[j];
            wrong |= !(value <= ELECTRONS_MAX) | !(value >= -ELECTRONS_MAX);
            column[j * LANES] = value > DATA_MIN ? value : DATA_MIN;
        }
        return wrong != 0;
    }

    MEMBER static u64 corner_of(const FitCall& call, u64 i) {
        return (u64)call.corners[2 * i + 1] * call.map_width + call.corners[2 * i];
    }

    MEMBER void load_variance(const FitCall& call, u64 i, int lane) {
        const int side = call.setup.side;
        const float* map = call.variance_map + corner_of(call, i);
        float* column = (float*)readout + lane;
        for (int r = 0; r < side; ++r)
            for (int c = 0; c < side; ++c) column[(r * side + c) * LANES] = map[r * call.map_width + c];
    }
};

// Lanes that may be done and idle before they are written and filled again: beginning and ending a fit costs a part of
// an evaluation, for all lanes at once.
constexpr int IDLE_MAX = LANES / 4;

template <int MODEL, bool MAPS> void write(const FitCall& call, Fit<MODEL, MAPS, Floats>& fit, const u64* owner,
                                           Ints idle) {
    typedef Parameters<MODEL> Is;
    Floats error[Is::COUNT], covariance[3];
    fit.errors(error, covariance);
    for (int lane = 0; lane < LANES; ++lane) {
        if (!idle[lane] || owner[lane] == ~(u64)0) continue;
        float theta_of[Is::COUNT], error_of[Is::COUNT], covariance_of[3];
        for (int k = 0; k < Is::COUNT; ++k) {
            theta_of[k] = fit.theta[k][lane];
            error_of[k] = error[k][lane];
        }
        for (int k = 0; k < 3; ++k) covariance_of[k] = covariance[k][lane];
        put<MODEL>(call, owner[lane], theta_of, error_of, covariance_of, fit.deviance[lane], fit.evaluations[lane],
                   fit.status[lane]);
    }
}

// All fits but their p-values. A lane that is done takes the next ROI.
template <int MODEL, bool MAPS> void fit_all(const FitCall& call, bool wide) {
    const FitSetup& setup = call.setup;
    const u64 NOBODY = ~(u64)0;
    Tile<MAPS> tile;
    for (int j = 0; j < setup.side * setup.side; ++j) tile.data[j] = vset<Floats>(1.f);
    for (int j = 0; j < (MAPS ? setup.side * setup.side : 1); ++j) tile.readout[j] = Floats{};
    Start<MODEL, Floats> start;
    start.prepare(setup);
    Fit<MODEL, MAPS, Floats> fit;
    fit.clear();
    u64 owner[LANES], next = 0;
    for (int lane = 0; lane < LANES; ++lane) owner[lane] = NOBODY;
    for (;;) {
        Ints idle = !fit.active, fresh = {}, bad = {};
        write(call, fit, owner, idle);
        bool busy = false;
        for (int lane = 0; lane < LANES; ++lane) {
            if (idle[lane]) {
                owner[lane] = NOBODY;
                if (next < call.count) {
                    owner[lane] = next++;
                    fresh[lane] = -1;
                    bad[lane] = tile.load(call, wide, owner[lane], lane) ? -1 : 0;
                }
            }
            busy |= owner[lane] != NOBODY;
        }
        if (!busy) return;
        if (vany(fresh)) fit.begin(setup, start, tile, fresh, bad);
        int working, enough;
        do {
            fit.advance(setup, tile);
            working = 0;
            for (int lane = 0; lane < LANES; ++lane) working -= fit.active[lane];
            // Towards the end there is nothing to fill idle lanes with.
            enough = next < call.count ? LANES - IDLE_MAX : 0;
        } while (working > enough);
    }
}

// The p-values of all fits, which need no data again.
template <int MODEL, bool MAPS> void judge_all(const FitCall& call) {
    typedef Parameters<MODEL> Is;
    Tile<MAPS> tile;
    for (u64 first = 0; first < call.count; first += LANES) {
        Floats theta[Is::COUNT], half;
        for (int lane = 0; lane < LANES; ++lane) {
            const u64 i = first + lane < call.count ? first + lane : call.count - 1;
            const FitRow<MODEL>& row = row_of<MODEL>(call, i);
            for (int k = 0; k < Is::COUNT; ++k) theta[k][lane] = row.theta[k];
            half[lane] = -row.log_likelihood_ratio;
            if (MAPS) tile.load_variance(call, i, lane);
        }
        const Floats p = p_value<MODEL, MAPS>(call.setup, tile, theta, half);
        for (int lane = 0; lane < LANES && first + lane < call.count; ++lane) {
            const bool bad = call.codes[2 * (first + lane) + 1] == BAD_INPUT;
            row_of<MODEL>(call, first + lane).p_value = bad ? NAN_VALUE : p[lane];
        }
    }
}

template <int MODEL> void fit_model(const FitCall& call, bool wide) {
    if (call.gain_map) {
        fit_all<MODEL, true>(call, wide);
        judge_all<MODEL, true>(call);
    } else {
        fit_all<MODEL, false>(call, wide);
        judge_all<MODEL, false>(call);
    }
}

}  // LOCAL

// `wide`: ROIs are f32 instead of u16.
HOST_ENTRY(fit)(const FitCall* call, int model, int wide) {
    switch (model) {
        case XYNB: return fit_model<XYNB>(*call, wide);
        case XYNBS: return fit_model<XYNBS>(*call, wide);
        case XYNBSXSY: return fit_model<XYNBSXSY>(*call, wide);
        case XYZNB: return fit_model<XYZNB>(*call, wide);
    }
}

#endif
