//! The studio: who gets in, and what the pages are given.

mod browser;
mod demo;
mod events;
mod hostile;
mod login;
mod metrics;
mod operations;
mod runs;
mod steps;
