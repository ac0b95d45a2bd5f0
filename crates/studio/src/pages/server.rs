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
    };
    shell.page("server.js", &content)
}
