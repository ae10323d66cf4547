/*
entries: the kernels for the device by source, under their names in PTX, and what they take. Structs go by value; they stand in the
sources, and again in src/engine/kernels. All that pointers lead to is memory of the device.
*/
#pragma once

// (FitCall, FitRound)
#define GAUSS_MLE_ENTRIES(ENTRY) \
    ENTRY(fit_xynb_u16) \
    ENTRY(fit_xynb_u16_maps) \
    ENTRY(fit_xynb_f32) \
    ENTRY(fit_xynb_f32_maps) \
    ENTRY(fit_xynbs_u16) \
    ENTRY(fit_xynbs_u16_maps) \
    ENTRY(fit_xynbs_f32) \
    ENTRY(fit_xynbs_f32_maps) \
    ENTRY(fit_xynbsxsy_u16) \
    ENTRY(fit_xynbsxsy_u16_maps) \
    ENTRY(fit_xynbsxsy_f32) \
    ENTRY(fit_xynbsxsy_f32_maps) \
    ENTRY(fit_xyznb_u16) \
    ENTRY(fit_xyznb_u16_maps) \
    ENTRY(fit_xyznb_f32) \
    ENTRY(fit_xyznb_f32_maps)

// (int function, const float* x, float* y, u64 count)
#define MATH_CHECK_ENTRIES(ENTRY) \
    ENTRY(math_check)

// (ClassifyCall), twice (DetectCall), (SegmentCall)
#define POSTPROCESS_ENTRIES(ENTRY) \
    ENTRY(classify) \
    ENTRY(detect_candidates) \
    ENTRY(detect_suppress) \
    ENTRY(segment)

// (PreprocessCall)
#define PREPROCESS_ENTRIES(ENTRY) \
    ENTRY(preprocess) \
    ENTRY(preprocess_plain) \
    ENTRY(preprocess_narrow) \
    ENTRY(preprocess_finished)

// (SpotCall); the last two: (SpotCut)
#define SPOTS_ENTRIES(ENTRY) \
    ENTRY(spots_convert_u16) \
    ENTRY(spots_convert_f32) \
    ENTRY(spots_columns) \
    ENTRY(spots_rows) \
    ENTRY(spots_select) \
    ENTRY(spots_cut_u16) \
    ENTRY(spots_cut_f32)

#define ALL_ENTRIES(ENTRY) \
    GAUSS_MLE_ENTRIES(ENTRY) \
    MATH_CHECK_ENTRIES(ENTRY) \
    POSTPROCESS_ENTRIES(ENTRY) \
    PREPROCESS_ENTRIES(ENTRY) \
    SPOTS_ENTRIES(ENTRY)
