//! Links for people.

use crate::{SamplingClient, ServiceClient, TrainingClient};

const HOSTED: &str = "https://tinker.thinkingmachines.ai";

impl ServiceClient {
    /// Returns where a person can look at the sessions of this account.
    pub fn get_console_url(&self) -> String {
        format!("{HOSTED}/sessions")
    }
}

impl TrainingClient {
    /// Returns where a person can look at this run.
    pub fn get_console_url(&self) -> String {
        format!("{HOSTED}/training_runs/{}", self.model_id())
    }
}

impl SamplingClient {
    /// Returns where a person can look at this sampler's session.
    pub fn get_console_url(&self) -> String {
        format!("{HOSTED}/sessions/{}", self.session_id())
    }
}
