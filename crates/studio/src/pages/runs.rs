//! The runs: what opens at `/`.

use maud::{Markup, html};

use crate::{Section, Shell};

/// Makes the page of runs. `demo` says whether the server can start the demo, `key` is the reader's key if that is no
/// secret: commands that the page shows have it.
pub fn runs(demo: bool, key: Option<&str>) -> Markup {
    let shell = Shell {
        title: "Runs",
        section: Section::Runs,
        is_shared: false,
    };
    let states = ["training", "waiting", "idle", "finished", "failed"];
    let content = html! {
        div.head {
            h1 { "Runs" }
            span.soft #count {}
        }
        div #note {}
        (first_visit(demo, key))
        div #list {
            div.tools {
                input.search #search type="search" placeholder="Search names, models, tags" aria-label="Search runs" autocomplete="off";
                div.switch #states role="group" aria-label="State" {
                    button data-state="" aria-pressed="true" { "all" }
                    @for state in states {
                        button data-state=(state) aria-pressed="false" { (state) }
                    }
                }
            }
            div.panel.scroll {
                table.cards {
                    thead {
                        tr {
                            th { span.visually-hidden { "Select" } }
                            th { "Run" }
                            th { "State" }
                            th.num { "Step" }
                            th.num { "Loss / reward" }
                            th.num { "Tokens / s" }
                            th { "Client" }
                            th.num { "Computed" }
                            th.num { "Active" }
                        }
                    }
                    tbody #runs {}
                }
                p.empty #nothing hidden { "No run fits. Search for less, or choose all states." }
            }
            div.tools { button #more hidden { "Show more runs" } }
            div.pick #picked hidden role="status" {
                span #picked-count {}
                button.main #compare { "Compare" }
                button.plain #unpick { "Clear" }
            }
        }
    };
    shell.page("runs.js", &content)
}

fn first_visit(demo: bool, key: Option<&str>) -> Markup {
    html! {
        section.panel.empty #empty hidden {
            h2 { "No runs yet" }
            @if demo {
                p #demo-words {
                    "Watch one: the demo teaches the small model that comes with this program to talk like a pirate, then "
                    "rewards it for naming animals of the forest. It takes a minute or two, on this machine."
                }
                button.main #demo { "Start the demo" }
                p { "Or train something of your own:" }
            } @else {
                p #demo-words { "Whatever trains on this server appears here while it trains, whichever client it uses." }
            }
            div.commands #start-commands data-key=[key] {}
        }
    }
}
