//! The way in.

use maud::{Markup, html};

use crate::layout::{document, mark};

/// Makes the page that asks for a key. `why` says why it asks again, `next` is where to go afterwards, and `any_key`
/// whether every well-formed key is taken.
pub fn login(why: Option<&str>, next: &str, any_key: bool) -> Markup {
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
                @if any_key {
                    p.small.soft {
                        "This server has no list of keys: any that starts with " code { "tml-" } " will do, and sees the runs "
                        "that were made with it. The command line on this machine uses " code { "tml-local" } "."
                    }
                }
                p.small.faint { "The key stays here: the browser keeps a signed cookie instead, for 30 days. " code { "tinkrs studio" } " logs in by itself." }
            }
        }
    };
    document("Log in", "page.js", false, &body)
}
