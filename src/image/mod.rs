//! Bytes to frames to model input.
