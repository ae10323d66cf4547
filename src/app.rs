//! Builds every part from the leaves up.
