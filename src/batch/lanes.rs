//! What waits.
