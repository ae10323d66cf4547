//! The handlers: each reads requests of one kind and writes their replies.
//!
//! - `predict`: images in, answers out; `localize`: the same for a fitter, whose stacks are read as they come.
//! - `infer`: tensors by the Open Inference Protocol; `kserve`: KServe's first protocol, with images or numbers in JSON.
//! - `shared_memory`: tensors that clients on this machine pass without the connection.
//! - `catalog`: what the server and its models are, and their statistics.
//! - `repository`, `devices`, `logging`: changes of models, devices and the log, by callers that may make them.
//! - `health`: whether the server lives and is ready; `scrape`: all metrics at one time.
//! - `page`: the page for people, and the documents.
//! - `listing`: bounds on replies that grow with the models and are not admitted.

pub(crate) mod catalog;
pub(super) mod devices;
pub(super) mod health;
pub(crate) mod infer;
pub(super) mod kserve;
pub(crate) mod listing;
pub(super) mod localize;
pub(crate) mod logging;
pub(super) mod page;
pub(crate) mod predict;
pub(crate) mod repository;
pub(super) mod scrape;
pub(crate) mod shared_memory;
