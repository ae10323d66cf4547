//! Test images.
