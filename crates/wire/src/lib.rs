//! The wire form of the Tinker API.
