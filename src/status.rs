//! What the process knows about itself.
