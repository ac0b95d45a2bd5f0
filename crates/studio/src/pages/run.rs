//! One run: curves, operations, data, checkpoints, settings.

use maud::{Markup, html};

use crate::{Section, Shell};

/// Makes the page of a run. `name` is what to call it until its description is read.
pub fn run(id: &str, name: &str, is_shared: bool) -> Markup {
    let shell = Shell {
        title: name,
        section: Section::Runs,
        is_shared,
    };
    let tabs = ["curves", "operations", "data", "checkpoints", "settings"];
    let content = html! {
        div #run data-run=(id) {
            div.head {
                h1 #name { bdi { (name) } }
                span.state #state {}
                @if is_shared { span.chip { "read-only link" } }
                div.actions {
                    @if !is_shared { a.button.tiny #chat hidden { "Chat" } }
                    button.tiny #copy-id { "Copy id" }
                    @if !is_shared { button.tiny #share { "Share" } }
                }
            }
            dl.figures.panel.pad #figures aria-label="Figures" {}
            div #note aria-live="polite" {}
            div.tabs #tabs role="tablist" aria-label="Parts of the run" {
                @for tab in tabs {
                    button role="tab" id=(format!("open-{tab}")) data-tab=(tab) aria-controls=(format!("tab-{tab}")) { (title(tab)) }
                }
            }
            section #tab-curves role="tabpanel" aria-labelledby="open-curves" { (curves(is_shared)) }
            @for tab in &tabs[1..] {
                section id=(format!("tab-{tab}")) role="tabpanel" aria-labelledby=(format!("open-{tab}")) hidden {}
            }
        }
    };
    shell.page("run.js", &content)
}

fn title(tab: &str) -> &str {
    match tab {
        "curves" => "Curves",
        "operations" => "Operations",
        "data" => "Data and rollouts",
        "checkpoints" => "Checkpoints",
        _ => "Settings and lineage",
    }
}

fn curves(is_shared: bool) -> Markup {
    html! {
        div.tools #curve-tools hidden {
            input.search #metric-search type="search" placeholder="Find a metric" aria-label="Find a metric" autocomplete="off";
            label { "Smoothing " input #smooth type="range" min="0" max="99" value="0"; span.num #smooth-value { "off" } }
            div.switch role="group" aria-label="Logarithmic axes" {
                button #logY aria-pressed="false" { "log y" }
                button #logX aria-pressed="false" { "log x" }
            }
            label { "Against " select #axis { option value="step" { "steps" } option value="time" { "time" } } }
            @if is_shared {
                input #add-run hidden;
            } @else {
                input #add-run list="known-runs" placeholder="Compare with a run…" aria-label="Compare with a run" autocomplete="off";
            }
            datalist #known-runs {}
            button #unzoom hidden { "Show all steps" }
        }
        div.legend #legend hidden aria-label="Runs" {}
        div.charts #charts {}
        div.panel.empty #no-curves hidden {
            h2 { "No steps yet" }
            p { "Curves appear with the first optim_step of the client, and grow with each one. Metrics that a client reports itself appear beside them." }
        }
    }
}
