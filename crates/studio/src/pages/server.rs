//! The server: what it holds, what waits, what is wrong.

use maud::{Markup, html};

use crate::{Section, Shell};

/// Makes the page of the server.
pub fn server() -> Markup {
    let shell = Shell {
        title: "Server",
        section: Section::Server,
        is_shared: false,
    };
    let content = html! {
        div.head {
            h1 { "Server" }
            span.soft #versions {}
        }
        div #note aria-live="polite" {}
        div.stack #server {}
        section.panel.pad.logins {
            h2 { "Logins" }
            p.soft {
                "If a browser or a link to a run got into the wrong hands: this ends all logins with your key, here and in "
                "every other browser, and all links to your runs. Programs that have the key go on."
            }
            button.danger #logout-everywhere { "Log out everywhere" }
        }
    };
    shell.page("server.js", &content)
}
