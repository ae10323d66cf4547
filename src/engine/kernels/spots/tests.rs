//! Spots at known places, and everything that is none.
