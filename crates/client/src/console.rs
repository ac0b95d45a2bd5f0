//! Links for people.

use crate::server_url::{HOSTED, HOSTED_CONSOLE};
use crate::{ServiceClient, TinkerPath, TrainingClient};
use tinkrs_wire::text::percent_encode;

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
        let console = self.console();
        match self.session_id() {
            Some(id) => format!("{console}/sessions/{id}"),
            None => format!("{console}/sessions"),
        }
    }

    /// Returns where a person can look at a checkpoint.
    pub fn get_checkpoint_console_url(&self, path: &TinkerPath) -> String {
        let [run, checkpoint] = [path.run().as_str(), &path.checkpoint_id()].map(percent_encode);
        format!("{}/checkpoints/{run}/{checkpoint}", self.console())
    }

    /// Returns where a person can talk to a checkpoint for sampling; `None` if the server is not the hosted
    /// service, which alone has such a page.
    pub fn get_playground_url(&self, path: &TinkerPath) -> Option<String> {
        let checkpoint = percent_encode(&path.to_string());
        let console = self.console();
        (console == HOSTED_CONSOLE)
            .then(|| format!("{console}/playground?mode=checkpoint&checkpoint={checkpoint}"))
    }

    fn console(&self) -> String {
        // Without a usable address nothing else works either, and says so.
        let base_url = self.inner.options.base_url();
        let base_url = base_url.map_or_else(|_| HOSTED.to_owned(), String::from);
        console(base_url.trim_end_matches('/')).to_owned()
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

        let path: TinkerPath = "tinker://s:train:0/sampler_weights/a".parse().unwrap();
        let pages = |url: &str| {
            let service = of(url);
            (
                service.get_checkpoint_console_url(&path),
                service.get_playground_url(&path),
            )
        };
        let page = "/checkpoints/s%3Atrain%3A0/sampler_weights%2Fa";
        let playground = "/playground?mode=checkpoint&checkpoint=tinker%3A%2F%2Fs%3Atrain%3A0%2Fsampler_weights%2Fa";
        let hosted = |page: &str| format!("{HOSTED_CONSOLE}{page}");
        assert_eq!(pages(HOSTED), (hosted(page), Some(hosted(playground))));
        let local = "http://127.0.0.1:8000";
        assert_eq!(pages(local), (format!("{local}{page}"), None));
    }
}
