//! Training loops for Tinker as library functions. Nothing of it exists yet.
