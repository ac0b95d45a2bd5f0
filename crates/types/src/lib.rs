//! Plain data types of the Tinker API.
