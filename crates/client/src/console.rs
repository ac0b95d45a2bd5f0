//! Links for people.

use crate::{ServiceClient, TrainingClient};

const HOSTED: &str = "https://tinker.thinkingmachines.ai";

impl ServiceClient {
    /// Returns where a person can look at this client's session, or at all sessions before it
    /// has one.
    pub fn get_console_url(&self) -> String {
        match self.session_id() {
            Some(id) => format!("{HOSTED}/sessions/{id}"),
            None => format!("{HOSTED}/sessions"),
        }
    }
}

impl TrainingClient {
    /// Returns where a person can look at this run.
    pub fn get_console_url(&self) -> String {
        format!("{HOSTED}/training_runs/{}", self.model_id())
    }
}
