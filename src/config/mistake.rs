//! The origins of values, and mistakes in them, which are collected so that all can be reported at once.

use crate::words::printable;
use std::{fmt, path::PathBuf};

/// Where a value comes from. Later variants take precedence over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Not set.
    Default,
    /// The configuration file.
    File {
        /// The path as given.
        path: PathBuf,
        /// Line number from 1; 0 for the file as a whole.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line: 0 } => write!(f, "{}", path.display()),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where the mistake is.
    pub origin: Origin,
    /// The text in question, such as `queue_items_max = "lots"`; empty if the origin is enough.
    pub found: String,
    /// What is wrong, what is allowed, what to do.
    pub reason: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", printable(&self.origin.to_string()))?;
        if !self.found.is_empty() {
            write!(f, "{}: ", self.found)?;
        }
        f.write_str(&self.reason)
    }
}

/// Every mistake in the configuration, in this order: file, environment, flags, contradictions between options, things that
/// options name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mistakes.len() {
            1 => f.write_str("1 mistake in the configuration:")?,
            n => write!(f, "{n} mistakes in the configuration:")?,
        }
        for mistake in &self.mistakes {
            write!(f, "\n  {mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
