//! A local Tinker API server. Nothing of it exists yet.
