//! The way in.

use maud::{Markup, html};

use crate::layout::{document, mark};

/// Makes the page that asks for a key. `why` says why it asks again, `next` is where to go afterwards.
pub fn login(why: Option<&str>, next: &str) -> Markup {
    let body = html! {
        main.login #main {
            div.panel {
                div { (mark()) h1 { "Tinkrs studio" } }
                @if let Some(why) = why {
                    p.note.bad role="alert" { (why) }
                }
                form method="post" action="/login" {
                    label.field {
                        span { "API key" }
                        input type="password" name="key" required autocomplete="current-password" autofocus placeholder="tml-…";
                    }
                    input type="hidden" name="next" value=(next);
                    button.main type="submit" { "Log in" }
                }
                p.small.soft {
                    "A server without a list of keys takes any that starts with " code { "tml-" } ", and shows the runs that were "
                    "made with it. The command line on this machine uses " code { "tml-local" } "."
                }
                p.small.faint { "The key stays here: the browser keeps a signed cookie instead, for 30 days. " code { "tinkrs studio" } " logs in by itself." }
            }
        }
    };
    document("Log in", "page.js", false, &body)
}
