//! One integration binary.
#![allow(clippy::unwrap_used)]

mod accept;
mod tidy;
