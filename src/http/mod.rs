//! The front: from a socket to a request with a permit, and from an answer or an error to a reply.
//!
//! - [`accept`]: connections, their clocks and their end.
//! - [`guard`]: names a request, checks its head, catches panics.
//! - [`admission`]: who may come in, decided on the headers.
//! - [`body`], [`multipart`]: bodies, with limits in bytes and in time.
//! - [`wire`]: the JSON and binary forms. Pure.
//! - [`reject`]: the table from error to reply.

pub mod accept;
pub mod admission;
pub mod body;
pub mod guard;
pub mod multipart;
pub mod reject;
pub mod wire;
