//! Links for people.

use crate::server_url::{HOSTED, HOSTED_CONSOLE};
use crate::{ServiceClient, TrainingClient};

/// Returns where the pages of a server are. The hosted service has a host for them; a local server
/// shows its own, at the same paths.
fn console(base_url: &str) -> &str {
    match base_url {
        HOSTED => HOSTED_CONSOLE,
        other => other,
    }
}

impl ServiceClient {
    /// Returns where a person can look at this client's session, or at all sessions before it
    /// has one.
    pub fn get_console_url(&self) -> String {
        // Without a usable address nothing else works either, and says so.
        let base_url = self.inner.options.base_url();
        let base_url = base_url.map_or_else(|_| HOSTED.to_owned(), String::from);
        let console = console(base_url.trim_end_matches('/'));
        match self.session_id() {
            Some(id) => format!("{console}/sessions/{id}"),
            None => format!("{console}/sessions"),
        }
    }
}

impl TrainingClient {
    /// Returns where a person can look at this run.
    pub fn get_console_url(&self) -> String {
        let console = console(&self.inner.session.connection.address.base_url);
        format!("{console}/training_runs/{}", self.model_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_console_of_the_server_that_is_used() {
        let of = |url: &str| {
            ServiceClient::builder()
                .base_url(url)
                .api_key("tml-x")
                .build()
        };
        let hosted = of(HOSTED).get_console_url();
        assert_eq!(hosted, "https://tinker.thinkingmachines.ai/sessions");
        let local = of("http://127.0.0.1:8000/").get_console_url();
        assert_eq!(local, "http://127.0.0.1:8000/sessions");
    }
}
