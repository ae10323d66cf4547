/*
fit: one Gaussian spot per lane by Poisson maximum likelihood: the only implementation of it.

Fisher scoring with the full matrix and Levenberg damping. A step is taken where the deviance falls; else it is
shortened. `Fit` is a machine whose `advance` evaluates the model once in each lane: a device thread runs it some times and
puts aside what is not done then, the host gives a lane its next ROI when it is done.
*/
#pragma once
#include "start.cuh"

LOCAL {

constexpr float BACKGROUND_MIN = 0.01f, BACKGROUND_MAX = 1e9f;
constexpr float POSITION_BEYOND = 0.5f;  // px that a position may lie outside the ROI's edges

// Steps are measured in units of 1 / sqrt(F_kk).
constexpr float STEP_DONE = 1e-3f;       // a step this short ends the fit
constexpr float ERROR_DONE = 1e-3f;      // so does one after which no more than this is expected to be left
constexpr float ERROR_STEP_MAX = 0.03f;  // but only if this short: the standard errors are those before it
constexpr float DAMPING_MAX = 1e3f;       // what brings a step of unit length down to STEP_DONE

// Where the focal lines are farther from z = 0 than this many depths of focus, no fit finds its way from one side of a line to the
// other: the widths on the way there fit worse.
constexpr float LINE_PASSABLE = 1.f;

constexpr int CONVERGED = 0, ITERATION_LIMIT = 1, AT_BOUND = 2, SINGULAR = 3, BAD_INPUT = 4;

// The state of one fit in each lane.
template <int MODEL, bool MAPS, class V> struct Fit {
    typedef Parameters<MODEL> Is;
    static constexpr int COUNT = Is::COUNT;
    static constexpr int PACKED = packed_size(COUNT);
    static constexpr bool STARTS = MODEL == XYZNB;  // more than one

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
    // With several starts: the best that those before this one gave, and how many they are.
    V best_theta[STARTS ? COUNT : 1];
    V best_fisher[STARTS ? PACKED : 1];
    V best_deviance;
    Int<V> best_status;
    Int<V> starts;

    // All that a fit is between two evaluations, word by word: so it can be put aside and go on elsewhere.
    static constexpr int WORDS = 3 * COUNT + PACKED + 5 + (STARTS ? COUNT + PACKED + 3 : 0);
    template <class Each> MEMBER void words(Each& each) {
        for (int k = 0; k < COUNT; ++k) {
            each(theta[k]);
            each(gradient[k]);
            each(trial[k]);
        }
        for (int k = 0; k < PACKED; ++k) each(fisher[k]);
        each(deviance);
        each(damping);
        each(last_step);
        each(evaluations);
        each(status);
        if constexpr (STARTS) {
            for (int k = 0; k < COUNT; ++k) each(best_theta[k]);
            for (int k = 0; k < PACKED; ++k) each(best_fisher[k]);
            each(best_deviance);
            each(best_status);
            each(starts);
        }
    }

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
        deviance = damping = last_step = best_deviance = zero;
        evaluations = status = best_status = starts = vseti<V>(0);
        active = vseti<V>(0) != 0;
        for (int k = 0; k < (STARTS ? COUNT : 1); ++k) best_theta[k] = zero;
        for (int k = 0; k < (STARTS ? PACKED : 1); ++k) best_fisher[k] = zero;
    }

    // Begins anew in the lanes of `fresh`; those of `bad` are done at once.
    template <class Pixels>
    MEMBER void begin(const FitSetup& setup, const Start<MODEL, V>& start, const Pixels& pixels, Mask<V> fresh,
                      Mask<V> bad) {
        V estimate[COUNT];
        start.estimate(setup, pixels, estimate);
        for (int k = 0; k < COUNT; ++k) {
            float low, high;
            bounds(setup, k, low, high);
            // A fit that never finds a better place ends here.
            trial[k] = vsel(fresh, vclamp(estimate[k], low, high), trial[k]);
            theta[k] = vsel(fresh, trial[k], theta[k]);
        }
        restart(fresh);
        status = vsel(fresh, vsel(bad, vseti<V>(BAD_INPUT), vseti<V>(CONVERGED)), status);
        evaluations = vsel(fresh, vseti<V>(0), evaluations);
        active = (active & !fresh) | (fresh & !bad);
        if (STARTS) starts = vsel(fresh, vseti<V>(0), starts);
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
        Mask<V> held[COUNT], any_held = vseti<V>(0) != 0, astray = any_held;
        for (int k = 0; k < COUNT; ++k) {
            float low, high;
            bounds(setup, k, low, high);
            scale[k] = vrsqrt(vmax(fisher[packed(k, k)], vset<V>(1e-30f)));
            step[k] = gradient[k] * scale[k];
            const Mask<V> above = (theta[k] >= high) & (gradient[k] > 0.f);
            held[k] = ((theta[k] <= low) & (gradient[k] < 0.f)) | above;
            any_held = any_held | held[k];
            // A background can be none: beside a bright spot that is as good a fit as any.
            astray = astray | (k == Is::BACKGROUND ? above : held[k]);
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
        // No step, however short, goes down any further: at the bottom of what rounding lets see, unless that took a damping
        // which rounding does not explain.
        const Mask<V> shortest = worse & (length < STEP_DONE);
        const Mask<V> stuck = shortest & (damping < DAMPING_MAX);
        Int<V> evaluations_max = vseti<V>(setup.evaluations_max);
        if (STARTS) evaluations_max = evaluations_max * (starts + 1);
        const Mask<V> tired = active & !arrived & !stuck & (shortest | (evaluations >= evaluations_max));

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
        status = vsel(done & astray & !tired, vseti<V>(AT_BOUND), status);
        if (STARTS) {
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

    // The likelihood has a second maximum at the other side of the focus, and where the data say little of z, or the focal lines
    // are far apart, a third one beyond them. A fit that is done is begun anew there, and given up as soon as it cannot become
    // better than the best.
    MEMBER void turn(const FitSetup& setup, Mask<V> done, V expected) {
        const Mask<V> first = starts == 0, later = starts > 0;
        const Mask<V> hopeless = active & later & !done & (expected > best_deviance);
        const Mask<V> ended = active & (done | hopeless);
        if (!vany(ended)) return;
        const Mask<V> better = ended & !hopeless & (first | (deviance < best_deviance));
        for (int k = 0; k < COUNT; ++k) best_theta[k] = vsel(better, theta[k], best_theta[k]);
        for (int k = 0; k < PACKED; ++k) best_fisher[k] = vsel(better, fisher[k], best_fisher[k]);
        best_deviance = vsel(better, deviance, best_deviance);
        best_status = vsel(better, status, best_status);

        const V z = best_theta[Is::SHAPE];
        const float depth = setup.defocus_x.depth;
        const float lines = 0.5f * (setup.defocus_x.shift - setup.defocus_y.shift);
        const float line = lines < 0.f ? -lines : lines;  // z of the focal lines, at either side
        const V far = vmax(vabs(z), vset<V>(0.5f * depth));
        const V beyond = vset<V>(line + depth);
        const Mask<V> above = z > 0.f;
        const V mirrored = vsel(above, -far, far), outside = vsel(above, beyond, -beyond);
        const V next = vclamp(vsel(later, outside, mirrored), setup.z_min, setup.z_max);
        const Mask<V> vague = (vabs(z) < line + 0.25f * depth) & (best_error() > 0.125f * depth);
        const Mask<V> inside = vabs(z) < vset<V>(line > LINE_PASSABLE * depth ? line : 0.f);
        const Mask<V> again = ended & (first | ((starts == 1) & (vague | inside)));
        const Mask<V> finished = ended & !again;
        for (int k = 0; k < COUNT; ++k) {
            theta[k] = vsel(finished, best_theta[k], theta[k]);
            trial[k] = vsel(again, best_theta[k], trial[k]);
        }
        for (int k = 0; k < PACKED; ++k) fisher[k] = vsel(finished, best_fisher[k], fisher[k]);
        deviance = vsel(finished, best_deviance, deviance);
        status = vsel(finished, best_status, vsel(again, vseti<V>(CONVERGED), status));
        active = active & !finished;
        trial[Is::SHAPE] = vsel(again, next, trial[Is::SHAPE]);
        restart(again);
        starts = starts + vsel(again, vseti<V>(1), vseti<V>(0));
    }

    // The standard error of z at the best so far, um.
    MEMBER V best_error() const {
        V scale[COUNT], matrix[PACKED];
        for (int k = 0; k < COUNT; ++k) scale[k] = vrsqrt(vmax(best_fisher[packed(k, k)], vset<V>(1e-30f)));
        UNROLL
        for (int i = 0; i < COUNT; ++i) {
            UNROLL
            for (int j = 0; j < i; ++j) matrix[packed(i, j)] = best_fisher[packed(i, j)] * scale[i] * scale[j];
            matrix[packed(i, i)] = vset<V>(1.f);
        }
        cholesky<COUNT>(matrix, PIVOT_MIN);
        V unit[COUNT];
        for (int k = 0; k < COUNT; ++k) unit[k] = vset<V>(k == Is::SHAPE ? 1.f : 0.f);
        solve<COUNT>(matrix, unit);
        return vsqrt(unit[Is::SHAPE]) * scale[Is::SHAPE];
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
        // A pivot tells only what the parameters before it leave of one, and rounding may lift it over the limit where those after
        // it are as undetermined: so what all others leave of each is held to the same limit.
        for (int k = 0; k < COUNT; ++k) regular = regular & (matrix[packed(k, k)] * PIVOT_MIN < 1.f);
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

}  // LOCAL
