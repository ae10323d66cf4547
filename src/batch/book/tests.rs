//! What the book promises, without a clock.
