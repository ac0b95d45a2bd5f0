//! Shared fixtures for the tests of the workspace. Never published.
