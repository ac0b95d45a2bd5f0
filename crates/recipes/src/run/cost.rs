//! What a run has cost, in its folder.

use super::metrics::TOKENS;
use super::read_metrics;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// What a run has cost so far, at the prices of a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// How much.
    pub amount: f64,
    /// In which currency.
    pub currency: String,
    /// The day of the prices, as `YYYY-MM-DD`.
    pub prices_of: String,
}

impl Cost {
    /// Reads the cost of the run in a folder, if it is known.
    pub fn read(folder: impl AsRef<Path>) -> Option<Self> {
        let text = std::fs::read_to_string(folder.as_ref().join("cost.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes it into the folder of a run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let path = folder.as_ref().join("cost.json");
        let text = serde_json::to_string(self).map_err(std::io::Error::from);
        let written = text.and_then(|text| std::fs::write(&path, text + "\n"));
        written.map_err(Error::file("write", &path))
    }

    /// Returns how many tokens the run in a folder has trained on.
    pub fn tokens_trained(folder: impl AsRef<Path>) -> f64 {
        let metrics = read_metrics(folder.as_ref().join("metrics.jsonl")).unwrap_or_default();
        let tokens = metrics.values().filter_map(|numbers| numbers.get(TOKENS));
        tokens.sum()
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            amount,
            currency,
            prices_of,
        } = self;
        write!(
            f,
            "about {amount:.2} {currency} at the prices of {prices_of}"
        )
    }
}
