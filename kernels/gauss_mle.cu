/*
gauss_mle: fits one Gaussian spot per ROI by Poisson maximum likelihood.

  in   rois      [count, side, side]  u16 or f32  ADU, row-major
  in   corners   [count, 2]           u32         x, y of the ROI's first pixel on the sensor; with maps only
  in   maps      [height, width] x 3  f32         gain, bias and variance as in FitSetup (likelihood.cuh); or none
  out  fits      [count]              FitRecord   see there

A lane is one ROI. `Fit` (fit.cuh) is the only implementation; the entries at the end, for the device and for the host,
differ in nothing but where a lane's ROI comes from.
*/
#include "fit.cuh"
#include "goodness.cuh"

LOCAL {

// One fit as it leaves. The same struct stands in src/engine/kernels/fit.rs.
struct FitRecord {
    float theta[6];       // in the order of the model, positions relative to the ROI's first pixel; the rest is 0
    float error[6];       // Cramer-Rao standard deviations, like theta
    float covariance[3];  // xy, xz, yz
    float log_likelihood_ratio;
    float p_value;
    u8 iterations;
    u8 status;
    u8 unused[2];
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
    FitRecord* fits;
};

// Electrons beyond this are no measurement; also what NaN and infinities are found by.
constexpr float ELECTRONS_MAX = 1e9f;

// ---- where a lane's ROI comes from -------------------------------------------------------------------------------

#if ON_DEVICE

// One ROI where it lies in global memory; converted as it is read.
template <class Adu, bool MAPS> struct DeviceRoi {
    const Adu* adu;
    const float *gain_map, *bias_map, *variance_map;  // of the ROI's first pixel
    u64 map_width;
    float gain, bias;
    int side;

    MEMBER u64 on_map(int j) const { return (u64)(j / side) * map_width + j % side; }
    MEMBER float converted(int j) const {
        const float value = (float)adu[j];
        return MAPS ? value * gain_map[on_map(j)] + bias_map[on_map(j)] : value * gain + bias;
    }
    MEMBER float electrons(int j) const { return vmax(converted(j), DATA_MIN); }
    MEMBER float variance(int j) const { return MAPS ? variance_map[on_map(j)] : 0.f; }
};

template <int MODEL, bool MAPS, class Adu> DEV void fit_on_device(const FitCall& call) {
    typedef Parameters<MODEL> Is;
    const FitSetup& setup = call.setup;
    const int pixels = setup.side * setup.side;
    Start<MODEL, float> start;
    start.prepare(setup);
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < call.count; i += stride) {
        DeviceRoi<Adu, MAPS> roi;
        roi.adu = (const Adu*)call.rois + i * pixels;
        roi.gain = setup.gain;
        roi.bias = setup.bias;
        roi.side = setup.side;
        roi.map_width = call.map_width;
        if (MAPS) {
            const u64 corner = (u64)call.corners[2 * i + 1] * call.map_width + call.corners[2 * i];
            roi.gain_map = call.gain_map + corner;
            roi.bias_map = call.bias_map + corner;
            roi.variance_map = call.variance_map + corner;
        }
        bool bad = false;
        for (int j = 0; j < pixels; ++j) bad = bad | !(vabs(roi.converted(j)) <= ELECTRONS_MAX);

        Fit<MODEL, MAPS, float> fit;
        fit.clear();
        fit.begin(setup, start, roi, true, bad);
        while (fit.active) fit.advance(setup, roi);
        float error[Is::COUNT], covariance[3];
        fit.errors(error, covariance);

        FitRecord record = {};
        const float nothing = __int_as_float(0x7fc00000);
        for (int k = 0; k < Is::COUNT; ++k) {
            record.theta[k] = bad ? nothing : fit.theta[k];
            record.error[k] = bad ? nothing : error[k];
        }
        for (int k = 0; k < 3; ++k) record.covariance[k] = bad ? nothing : covariance[k];
        record.log_likelihood_ratio = bad ? nothing : -fit.deviance;
        record.p_value = bad ? nothing : p_value<MODEL, MAPS>(setup, roi, fit.theta, fit.deviance);
        record.iterations = (u8)(fit.evaluations < 255 ? fit.evaluations : 255);
        record.status = (u8)fit.status;
        call.fits[i] = record;
    }
}

#define FIT_KERNELS(name, MODEL)                                                                               \
    KERNEL(fit_##name##_u16)(FitCall call) { fit_on_device<MODEL, false, u16>(call); }                         \
    KERNEL(fit_##name##_u16_maps)(FitCall call) { fit_on_device<MODEL, true, u16>(call); }                     \
    KERNEL(fit_##name##_f32)(FitCall call) { fit_on_device<MODEL, false, float>(call); }                       \
    KERNEL(fit_##name##_f32_maps)(FitCall call) { fit_on_device<MODEL, true, float>(call); }

}  // LOCAL

FIT_KERNELS(xynb, XYNB)
FIT_KERNELS(xynbs, XYNBS)
FIT_KERNELS(xynbsxsy, XYNBSXSY)
FIT_KERNELS(xyznb, XYZNB)

#else

// The ROIs of all lanes, transposed: pixel j of all lanes stands together.
template <bool MAPS> struct Tile {
    Floats data[SIDE_MAX * SIDE_MAX];
    Floats readout[MAPS ? SIDE_MAX * SIDE_MAX : 1];
    MEMBER Floats electrons(int j) const { return data[j]; }
    MEMBER Floats variance(int j) const { return readout[MAPS ? j : 0]; }

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
    const float nothing = __builtin_nanf("");
    for (int lane = 0; lane < LANES; ++lane) {
        if (!idle[lane] || owner[lane] == ~(u64)0) continue;
        FitRecord record = {};
        const bool bad = fit.status[lane] == BAD_INPUT;
        for (int k = 0; k < Is::COUNT; ++k) {
            record.theta[k] = bad ? nothing : fit.theta[k][lane];
            record.error[k] = bad ? nothing : error[k][lane];
        }
        for (int k = 0; k < 3; ++k) record.covariance[k] = bad ? nothing : covariance[k][lane];
        record.log_likelihood_ratio = bad ? nothing : -fit.deviance[lane];
        record.iterations = (u8)(fit.evaluations[lane] < 255 ? fit.evaluations[lane] : 255);
        record.status = (u8)fit.status[lane];
        call.fits[owner[lane]] = record;
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
            for (int k = 0; k < Is::COUNT; ++k) theta[k][lane] = call.fits[i].theta[k];
            half[lane] = -call.fits[i].log_likelihood_ratio;
            if (MAPS) tile.load_variance(call, i, lane);
        }
        const Floats p = p_value<MODEL, MAPS>(call.setup, tile, theta, half);
        for (int lane = 0; lane < LANES && first + lane < call.count; ++lane) {
            FitRecord& record = call.fits[first + lane];
            record.p_value = record.status == BAD_INPUT ? __builtin_nanf("") : p[lane];
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
