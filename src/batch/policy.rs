//! From what waits to a decision.
