//! The studio: pages that show what the server knows, and the way in for browsers.
//!
//! - [`origin`]: who sent a browser's request: one of our pages, another site, or no browser at all;
//! - [`visitor`]: from cookies to an owner, for pages and for the API that they use;
//! - [`login`]: logging in and out, links that log in once, links that show one run;
//! - [`headers`]: what every page is answered with;
//! - [`pages`]: the pages;
//! - [`demo`]: what the page of runs offers on a first visit;
//! - [`runs`], [`metrics`], [`operations`], [`steps`], [`server_view`], [`events`]: the API that the pages use, over `read`;
//! - [`measure`], [`waits`], [`activity`]: what is noted of each step, why operations waited, and what runs do now;
//! - [`feed`], [`news`]: who hears of changes, and what they are told.
//!
//! A cookie is taken where a key is, with three rules more: a request of another site's page is refused, a write
//! has to carry a header that only our own pages can set, and a cookie that shows one run reads what is declared
//! as [`shared`](tinkrs_wire::endpoint::Endpoint::shared) of that run and nothing else.

pub(crate) mod activity;
pub(crate) mod demo;
pub(crate) mod events;
pub(crate) mod feed;
pub(crate) mod headers;
pub(crate) mod login;
pub(crate) mod measure;
pub(crate) mod metrics;
pub(crate) mod news;
pub(crate) mod operations;
pub(crate) mod origin;
pub(crate) mod pages;
mod read;
pub(crate) mod runs;
pub(crate) mod server_view;
pub(crate) mod steps;
pub(crate) mod visitor;
pub(crate) mod waits;
