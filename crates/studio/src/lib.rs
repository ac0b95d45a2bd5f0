//! The web pages of a Tinkrs server: data in, HTML out.
//!
//! [`assets`] holds the style sheet and the ES modules, under names that change with their content. [`pages`] has a
//! function for each page, [`chart`] draws curves without a script, for files that stand by themselves.
//!
//! Pages carry no inline scripts or styles, so they work under a strict Content-Security-Policy. What people typed
//! is escaped by the templates and isolated from the direction of the text around it; modules put it into pages as
//! text only.

pub mod assets;
pub mod chart;
mod layout;
pub mod pages;

pub use layout::{Section, Shell};
