//! The playground: talking to models, side by side.

use maud::{Markup, html};

use crate::{Section, Shell};

/// Makes the playground.
pub fn playground() -> Markup {
    let shell = Shell {
        title: "Playground",
        section: Section::Playground,
        is_shared: false,
    };
    let content = html! {
        div.head {
            h1 { "Playground" }
            div.actions {
                button.tiny #add-column { "Add a model" }
                button.tiny #save { "Save as JSONL" }
                button.tiny #clear { "Clear" }
            }
        }
        div #note {}
        div.play {
            div {
                div.columns #columns {}
                div.composer {
                    form #composer {
                        textarea #prompt rows="1" placeholder="Ask something" aria-label="Message" {}
                        button.main #send type="submit" { "Send" }
                        button #stop type="button" hidden { "Stop" }
                    }
                }
            }
            aside.panel.pad.settings aria-label="Sampling settings" { (settings()) }
        }
    };
    shell.page("playground.js", &content)
}

fn settings() -> Markup {
    let number = |id: &str, words: &str, value: &str, step: &str, max: &str| {
        html! {
            label.field { span { (words) } input.num id=(id) type="number" min="0" max=(max) step=(step) value=(value) inputmode="decimal"; }
        }
    };
    html! {
        div.row {
            (number("temperature", "Temperature", "0.7", "0.1", "10"))
            (number("top_p", "Top p", "1", "0.05", "1"))
        }
        div.row {
            (number("max_tokens", "Max tokens", "256", "1", "1000000"))
            (number("seed", "Seed (none)", "", "1", "9007199254740991"))
        }
        div.row {
            (number("top_k", "Top k (all)", "", "1", "1000000"))
            label.field { span { "Show" } select #show { option value="text" { "text" } option value="tokens" { "tokens" } } }
        }
        label.field { span { "System message" } textarea #system rows="2" placeholder="None" {} }
        details {
            summary.soft { "Tools" }
            label.field { span { "A JSON list of function definitions" } textarea.mono #tools rows="6" placeholder="[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\"}}}]" {} }
        }
        p.small.faint { "Click a token to see what else it could have been, and go on from there. Enter sends, Shift+Enter makes a line." }
    }
}
