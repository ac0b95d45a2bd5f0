//! Pages of facts, at the addresses that the hosted service's console has.

use maud::{Markup, Render, html};

use crate::{Section, Shell};

/// A line of a table of facts.
#[derive(Debug)]
pub struct Fact {
    /// What it is about.
    pub name: String,
    /// What is so.
    pub value: Markup,
}

impl Fact {
    /// Makes a fact of a text.
    pub fn new(name: &str, value: impl Render) -> Self {
        Self {
            name: name.to_owned(),
            value: html! { bdi { (value) } },
        }
    }

    /// Makes a fact that is a moment, as RFC 3339 has it; the reader sees it in their own time.
    pub fn time(name: &str, time: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: html! { time datetime=(time) { (time) } },
        }
    }

    /// Makes a fact that leads to a page.
    pub fn link(name: &str, path: &str, words: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: html! { a href=(path) { bdi { (words) } } },
        }
    }

    /// Makes a fact of a command to copy.
    pub fn command(name: &str, line: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: html! {
                div.command { code.bdi { (line) } button.tiny.plain data-copy=(line) { "Copy" } }
            },
        }
    }
}

/// Makes a page of facts, in groups that have titles.
pub fn facts(title: &str, groups: &[(&str, Vec<Fact>)]) -> Markup {
    let content = html! {
        div.head { h1 { bdi { (title) } } }
        div.stack {
            @for (heading, facts) in groups.iter().filter(|(_, facts)| !facts.is_empty()) {
                section.panel {
                    h2 { (heading) }
                    table.facts {
                        tbody {
                            @for fact in facts {
                                tr { th scope="row" { bdi { (fact.name) } } td { (fact.value) } }
                            }
                        }
                    }
                }
            }
        }
    };
    shell(title).page("page.js", &content)
}

/// Makes a page with a table. Cells are markup already.
pub fn listing(
    title: &str,
    columns: &[&str],
    rows: &[Vec<Markup>],
    below: &str,
    empty: &str,
) -> Markup {
    let content = html! {
        div.head { h1 { (title) } span.soft { (below) } }
        div.panel.scroll {
            @if rows.is_empty() {
                p.empty { (empty) }
            } @else {
                table {
                    thead { tr { @for column in columns { th { (column) } } } }
                    tbody { @for row in rows { tr { @for cell in row { td { (cell) } } } } }
                }
            }
        }
    };
    shell(title).page("page.js", &content)
}

/// Makes the page that says why there is none.
pub fn refused(why: &str) -> Markup {
    let content = html! {
        div.panel.empty {
            h1 { "Not here" }
            p { bdi { (why) } }
            a.button href="/" { "To the runs" }
        }
    };
    shell("Not here").page("page.js", &content)
}

fn shell(title: &str) -> Shell<'_> {
    Shell {
        title,
        section: Section::Elsewhere,
        is_shared: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_text_in_elements_and_in_addresses() {
        let hostile = "a\"><b>&\u{202e}";
        let page = facts(
            hostile,
            &[(
                "x",
                vec![
                    Fact::new(hostile, hostile),
                    Fact::link("l", "/sessions/a\"><b>", hostile),
                    Fact::command("c", hostile),
                    Fact::time("t", hostile),
                ],
            )],
        );
        let page = page.into_string();
        assert!(!page.contains("<b>"), "{page}");
        assert!(page.contains("<title>a&quot;&gt;&lt;b&gt;&amp;"), "{page}");
        assert!(page.contains("<bdi>a&quot;&gt;&lt;b&gt;&amp;"), "{page}");
    }

    #[test]
    fn pages_have_no_inline_scripts_or_styles() {
        let pages = [
            facts("a", &[("b", vec![Fact::command("c", "d")])]),
            listing("a", &["b"], &[], "c", "d"),
            refused("why"),
            crate::pages::runs(true, Some("tml-local")),
            crate::pages::run("id", "name", false),
            crate::pages::playground(),
            crate::pages::server(),
            crate::pages::login(Some("why"), "/"),
        ];
        for page in pages {
            let page = page.into_string();
            assert!(!page.contains(" style="), "{page}");
            assert!(!page.contains("<style"), "{page}");
            for script in page.split("<script").skip(1) {
                assert!(script.contains("></script>"), "{script}");
            }
            let listens = |part: &&str| {
                let name = part.split(['=', ' ', '>']).next().unwrap_or_default();
                part[name.len()..].starts_with("=\"")
            };
            assert_eq!(page.split(" on").skip(1).find(listens), None, "{page}");
        }
    }
}
