//! Device workers.
