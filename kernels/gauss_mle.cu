/*
gauss_mle: fits one Gaussian spot per ROI by Poisson maximum likelihood.

  in   rois      [count, side, side]  u16 or f32  ADU, row-major
  in   corners   [count, 2]           u32         x, y of the ROI's first pixel on the sensor; with maps only
  in   maps      [height, width] x 3  f32         gain, bias and variance as in FitSetup; or none
  out  fits      [count]              FitRecord   see there

A lane is one ROI. `Fit` is the only implementation; the entries at the end, for the device and for the host, differ
in nothing but where a lane's ROI comes from.
*/
#include "goodness.cuh"
#include "start.cuh"

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

// The state of one fit in each lane.
template <int MODEL, bool MAPS, class V> struct Fit {
    typedef Parameters<MODEL> Is;
    static constexpr int COUNT = Is::COUNT;
    static constexpr int PACKED = packed_size(COUNT);
    static constexpr bool TWO_STARTS = MODEL == XYZNB;

    V theta[COUNT];  // the best so far, with gradient, Fisher matrix and half the deviance there
    V gradient[COUNT];
    V fisher[PACKED];
    V deviance;
    V trial[COUNT];  // where the model is evaluated next
    V damping;
    V last_step;  // length of the last step that was not damped; 0 where there was none
    Int<V> evaluations;
    Int<V> status;
    Mask<V> active;
    // With two starts: what the first of them gave.
    V first_theta[TWO_STARTS ? COUNT : 1];
    V first_fisher[TWO_STARTS ? PACKED : 1];
    V first_deviance;
    Int<V> first_status;
    Mask<V> second;

    MEMBER static void bounds(const FitSetup& setup, int k, float& low, float& high) {
        if (k == Is::X || k == Is::Y) {
            low = -0.5f - POSITION_BEYOND;
            high = setup.side - 0.5f + POSITION_BEYOND;
        } else if (k == Is::PHOTONS) {
            low = PHOTONS_MIN;
            high = PHOTONS_MAX;
        } else if (k == Is::BACKGROUND) {
            low = BACKGROUND_MIN;
            high = BACKGROUND_MAX;
        } else if (MODEL == XYZNB) {
            low = setup.z_min;
            high = setup.z_max;
        } else {
            low = setup.sigma_min;
            high = setup.sigma_max;
        }
    }

    // All lanes idle.
    MEMBER void clear() {
        const V zero = vset<V>(0.f);
        for (int k = 0; k < COUNT; ++k) theta[k] = trial[k] = gradient[k] = vset<V>(1.f);
        for (int k = 0; k < PACKED; ++k) fisher[k] = zero;
        deviance = damping = last_step = first_deviance = zero;
        evaluations = status = first_status = vseti<V>(0);
        active = second = vseti<V>(0) != 0;
        for (int k = 0; k < (TWO_STARTS ? COUNT : 1); ++k) first_theta[k] = zero;
        for (int k = 0; k < (TWO_STARTS ? PACKED : 1); ++k) first_fisher[k] = zero;
    }

    // Begins anew in the lanes of `fresh`; those of `bad` are done at once.
    template <class Pixels>
    MEMBER void begin(const FitSetup& setup, const Start<MODEL, V>& start, const Pixels& pixels, Mask<V> fresh,
                      Mask<V> bad) {
        V estimate[COUNT];
        start.estimate(setup, pixels, estimate);
        for (int k = 0; k < COUNT; ++k) {
            trial[k] = vsel(fresh, estimate[k], trial[k]);
            theta[k] = vsel(fresh, trial[k], theta[k]);
        }
        restart(fresh);
        status = vsel(fresh, vsel(bad, vseti<V>(BAD_INPUT), vseti<V>(CONVERGED)), status);
        evaluations = vsel(fresh, vseti<V>(0), evaluations);
        active = (active & !fresh) | (fresh & !bad);
        if (TWO_STARTS) second = second & !fresh;
    }

    MEMBER void restart(Mask<V> fresh) {
        deviance = vsel(fresh, vset<V>(3e38f), deviance);
        damping = vsel(fresh, vset<V>(0.f), damping);
        last_step = vsel(fresh, vset<V>(0.f), last_step);
    }

    // Evaluates the model once in each active lane and takes a step. Lanes that are done are no longer active.
    template <class Pixels> MEMBER void advance(const FitSetup& setup, const Pixels& pixels) {
        V new_gradient[COUNT], new_fisher[PACKED], new_deviance;
        evaluate<MODEL, MAPS>(setup, pixels, trial, new_gradient, new_fisher, new_deviance);
        evaluations = evaluations + vsel(active, vseti<V>(1), vseti<V>(0));

        // Down, but for rounding.
        const Mask<V> better = active & (new_deviance <= deviance + (vabs(deviance) * 1e-6f + 1e-5f));
        const Mask<V> worse = active & !better;
        // The slopes along the last move, before and after it.
        V before = vset<V>(0.f), after = vset<V>(0.f);
        for (int k = 0; k < COUNT; ++k) {
            const V move = trial[k] - theta[k];
            before = before + gradient[k] * move;
            after = after + new_gradient[k] * move;
        }
        for (int k = 0; k < COUNT; ++k) {
            theta[k] = vsel(better, trial[k], theta[k]);
            gradient[k] = vsel(better, new_gradient[k], gradient[k]);
        }
        for (int k = 0; k < PACKED; ++k) fisher[k] = vsel(better, new_fisher[k], fisher[k]);
        deviance = vsel(better, new_deviance, deviance);
        // Where the slope has turned by more than half, the likelihood is more curved than the Fisher matrix says, and steps
        // would swing about the maximum. -after / before is the damping that meets it.
        const V turned = -after / vmax(before, vset<V>(1e-30f));
        const Mask<V> swings = (before > 0.f) & (turned > 0.5f);
        V less = vsel(damping > 3e-3f, damping * 0.1f, vset<V>(0.f));
        less = vsel(swings, vmax(vmin(turned, vset<V>(2.f)), damping), less);
        const V more = vmax(damping * 8.f, vset<V>(0.1f));
        damping = vsel(better, less, vsel(worse, more, damping));

        // The step, in units of 1 / sqrt(F_kk). A parameter that its gradient holds at a bound takes no part.
        V scale[COUNT], step[COUNT], matrix[PACKED];
        Mask<V> held[COUNT], any_held = vseti<V>(0) != 0;
        for (int k = 0; k < COUNT; ++k) {
            float low, high;
            bounds(setup, k, low, high);
            scale[k] = vrsqrt(vmax(fisher[packed(k, k)], vset<V>(1e-30f)));
            step[k] = gradient[k] * scale[k];
            held[k] = ((theta[k] <= low) & (gradient[k] < 0.f)) | ((theta[k] >= high) & (gradient[k] > 0.f));
            any_held = any_held | held[k];
        }
        const V diagonal = damping + 1.f;
        UNROLL
        for (int i = 0; i < COUNT; ++i) {
            UNROLL
            for (int j = 0; j < i; ++j) matrix[packed(i, j)] = fisher[packed(i, j)] * scale[i] * scale[j];
            matrix[packed(i, i)] = diagonal;
        }
        if (vany(any_held)) {
            for (int i = 0; i < COUNT; ++i) {
                for (int j = 0; j < i; ++j) {
                    const Mask<V> either = held[i] | held[j];
                    matrix[packed(i, j)] = vsel(either, vset<V>(0.f), matrix[packed(i, j)]);
                }
                step[i] = vsel(held[i], vset<V>(0.f), step[i]);
            }
        }
        V slope[COUNT];
        for (int k = 0; k < COUNT; ++k) slope[k] = step[k];
        cholesky<COUNT>(matrix, PIVOT_MIN);
        solve<COUNT>(matrix, step);

        V length = vset<V>(0.f), gain = vset<V>(0.f);
        for (int k = 0; k < COUNT; ++k) {
            length = vmax(vabs(step[k]), length);
            gain = gain + slope[k] * step[k];
        }
        // Scoring converges linearly: what is left after this step is as much shorter as it is than the last one.
        const Mask<V> free = better & (damping == 0.f);
        const V left = length * length;
        const Mask<V> nearly = free & (length < ERROR_STEP_MAX) & (left < last_step * ERROR_DONE);
        last_step = vsel(better, vsel(free, length, vset<V>(0.f)), last_step);
        const Mask<V> arrived = (better & (length < STEP_DONE)) | nearly;
        // No step, however short, goes down any further.
        const Mask<V> stuck = worse & (length < STEP_DONE);
        Int<V> evaluations_max = vseti<V>(setup.evaluations_max);
        if (TWO_STARTS) evaluations_max = vsel(second, 2 * evaluations_max, evaluations_max);
        const Mask<V> tired = active & !arrived & !stuck & (evaluations >= evaluations_max);

        for (int k = 0; k < COUNT; ++k) {
            float low, high;
            bounds(setup, k, low, high);
            V next = theta[k] + limit(setup, k, step[k] * scale[k]);
            next = vclamp(next, low, high);
            trial[k] = vsel(active, next, trial[k]);
        }
        deviance = vsel(arrived, deviance - 0.5f * gain, deviance);
        for (int k = 0; k < COUNT; ++k) theta[k] = vsel(arrived, trial[k], theta[k]);
        status = vsel(tired, vseti<V>(ITERATION_LIMIT), status);
        const Mask<V> done = arrived | stuck | tired;
        status = vsel(done & any_held & !tired, vseti<V>(AT_BOUND), status);
        if (TWO_STARTS) {
            turn(setup, done, deviance - 1.5f * gain);
        } else {
            active = active & !done;
        }
    }

    // Steps beyond what the quadratic model can know are cut.
    MEMBER V limit(const FitSetup& setup, int k, V step) const {
        if (k == Is::X || k == Is::Y) return vclamp(step, -1.f, 1.f);
        if (k == Is::PHOTONS) {
            const V reach = theta[k] * 0.75f + 10.f;
            return vmin(vmax(step, -reach), reach * 4.f);
        }
        if (k == Is::BACKGROUND) return step;
        const V reach = MODEL == XYZNB ? vset<V>(0.5f * setup.defocus_x.depth) : theta[k] * 0.35f;
        return vmin(vmax(step, -reach), reach);
    }

    // The likelihood has a second maximum at the other side of the focus. A fit that is done is begun anew there, and
    // given up as soon as it cannot become better than the first.
    MEMBER void turn(const FitSetup& setup, Mask<V> done, V expected) {
        const Mask<V> hopeless = active & second & (expected > first_deviance);
        const Mask<V> finished = second & (done | hopeless);
        const Mask<V> worse = finished & (hopeless | !(deviance < first_deviance));
        for (int k = 0; k < COUNT; ++k) theta[k] = vsel(worse, first_theta[k], theta[k]);
        for (int k = 0; k < PACKED; ++k) fisher[k] = vsel(worse, first_fisher[k], fisher[k]);
        deviance = vsel(worse, first_deviance, deviance);
        status = vsel(worse, first_status, status);
        active = active & !finished;

        const Mask<V> again = done & !second;
        for (int k = 0; k < COUNT; ++k) {
            first_theta[k] = vsel(again, theta[k], first_theta[k]);
            trial[k] = vsel(again, theta[k], trial[k]);
        }
        for (int k = 0; k < PACKED; ++k) first_fisher[k] = vsel(again, fisher[k], first_fisher[k]);
        first_deviance = vsel(again, deviance, first_deviance);
        first_status = vsel(again, status, first_status);
        const V z = theta[Is::SHAPE];
        const V far = vmax(vabs(z), vset<V>(0.5f * setup.defocus_x.depth));
        const V mirrored = vclamp(vsel(z > 0.f, -far, far), setup.z_min, setup.z_max);
        trial[Is::SHAPE] = vsel(again, mirrored, trial[Is::SHAPE]);
        status = vsel(again, vseti<V>(CONVERGED), status);
        restart(again);
        second = second | again;
    }

    // Standard errors and covariances at the end, from the Fisher matrix as it is. Also settles what is singular.
    MEMBER void errors(V (&error)[COUNT], V (&covariance)[3]) {
        V scale[COUNT], matrix[PACKED];
        for (int k = 0; k < COUNT; ++k) scale[k] = vrsqrt(vmax(fisher[packed(k, k)], vset<V>(1e-30f)));
        Mask<V> regular = deviance < 3e38f;
        UNROLL
        for (int i = 0; i < COUNT; ++i) {
            regular = regular & (fisher[packed(i, i)] > 1e-30f) & (fisher[packed(i, i)] < 1e30f);
            UNROLL
            for (int j = 0; j < i; ++j) matrix[packed(i, j)] = fisher[packed(i, j)] * scale[i] * scale[j];
            matrix[packed(i, i)] = vset<V>(1.f);
        }
        regular = cholesky<COUNT>(matrix, PIVOT_MIN) & regular;
        inverse<COUNT>(matrix);
        const V nothing = vset<V>(0.f) / vset<V>(0.f);
        for (int k = 0; k < COUNT; ++k)
            error[k] = vsel(regular, vsqrt(matrix[packed(k, k)]) * scale[k], nothing);
        constexpr int X = Is::X, Y = Is::Y, Z = Is::SHAPE;
        const V zero = vset<V>(0.f);
        covariance[0] = vsel(regular, matrix[packed(Y, X)] * scale[X] * scale[Y], nothing);
        covariance[1] = MODEL == XYZNB ? vsel(regular, matrix[packed(X, Z)] * scale[X] * scale[Z], nothing) : zero;
        covariance[2] = MODEL == XYZNB ? vsel(regular, matrix[packed(Y, Z)] * scale[Y] * scale[Z], nothing) : zero;
        status = vsel((!active) & (!regular) & (status != BAD_INPUT), vseti<V>(SINGULAR), status);
    }
};


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
