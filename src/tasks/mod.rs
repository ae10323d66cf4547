//! Engine outputs to answers.
