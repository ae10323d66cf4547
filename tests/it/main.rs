//! One integration binary.
#![allow(clippy::unwrap_used)]

mod accept;
mod api;
mod drain;
mod fuzz;
mod isolation;
mod localizations;
mod openapi;
mod quiet;
mod support;
mod tidy;
mod weights;
