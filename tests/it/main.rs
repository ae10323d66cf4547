//! One integration binary.
#![allow(clippy::unwrap_used)]

mod accept;
mod openapi;
mod tidy;
