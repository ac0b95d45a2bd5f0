//! What all pages have around them.

use maud::{DOCTYPE, Markup, html};

use crate::assets;

/// A part of the studio that the bar on top leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The runs.
    Runs,
    /// The playground.
    Playground,
    /// The server.
    Server,
    /// None of them.
    Elsewhere,
}

/// What a page has around it.
#[derive(Clone, Copy, Debug)]
pub struct Shell<'a> {
    /// The title of the window.
    pub title: &'a str,
    /// Where in the studio it is.
    pub section: Section,
    /// Whether the reader has a link to one run, and sees nothing else.
    pub is_shared: bool,
}

impl Shell<'_> {
    /// Makes a page of its content. `script` is the module that makes it live.
    pub fn page(&self, script: &str, content: &Markup) -> Markup {
        let link = |section: Section, path: &str, words: &str| {
            let current = (section == self.section).then_some("page");
            html! { a href=(path) aria-current=[current] { (words) } }
        };
        document(
            self.title,
            script,
            self.is_shared,
            &html! {
                a.skip href="#main" { "Skip to the content" }
                header.bar {
                    a.brand href=(if self.is_shared { "#" } else { "/" }) { (mark()) span { "tinkrs" } }
                    @if !self.is_shared {
                        nav aria-label="Studio" {
                            (link(Section::Runs, "/", "Runs"))
                            (link(Section::Playground, "/playground", "Playground"))
                            (link(Section::Server, "/server", "Server"))
                        }
                    }
                    div.right {
                        span.live #live role="status" aria-label="Connection" { span {} }
                        button.plain #help aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" { "?" }
                        button.plain #theme aria-label="Change the theme" title="Change the theme (t)" { "◐" }
                        @if !self.is_shared {
                            button.plain #logout aria-label="Log out" title="Log out" { span.wide { "Log out" } span.narrow { (log_out_mark()) } }
                        }
                    }
                }
                main #main { (content) }
            },
        )
    }
}

/// A page without the bar.
pub(crate) fn document(title: &str, script: &str, is_shared: bool, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Tinkrs" }
                script src=(assets::path("theme.js")) {}
                link rel="stylesheet" href=(assets::path("studio.css"));
                link rel="icon" type="image/svg+xml" href=(assets::path("icon.svg"));
                script type="module" src=(assets::path(script)) {}
                @for module in assets::imported_by(script) { link rel="modulepreload" href=(module); }
            }
            body data-shared=[is_shared.then_some("")] { (body) }
        }
    }
}

/// The curve that falls.
pub(crate) fn mark() -> Markup {
    html! {
        svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" {
            path d="M3 5c3 11 6 13 18 14" {}
            circle cx="3.5" cy="5" r="1.6" fill="currentColor" {}
            circle cx="9.2" cy="15.3" r="1.6" fill="currentColor" {}
            circle cx="20.5" cy="19" r="1.6" fill="currentColor" {}
        }
    }
}

/// A door with an arrow out of it: the character for this is in few fonts.
fn log_out_mark() -> Markup {
    html! {
        svg viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" {
            path d="M10 4H5v16h5M14 8l4 4-4 4M18 12H9" {}
        }
    }
}
