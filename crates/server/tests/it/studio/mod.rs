//! The studio: who gets in, and what the pages are given.

mod browser;
mod login;
