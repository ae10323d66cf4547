//! The model folder.
