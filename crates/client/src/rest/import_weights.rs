use super::client::RestClient;
use crate::Error;
use crate::connection::call::{Call, Payload};
use std::time::Duration;
use tinkrs_wire::endpoint;

pub use tinkrs_types::rest::ImportedWeights;

/// How long a server may take to read an adapter.
const TIMEOUT: Duration = Duration::from_secs(600);

impl RestClient {
    /// Gives the server an adapter that was made elsewhere, to train on and to sample from.
    ///
    /// `archive` is a tar of the two files that PEFT writes, `adapter_config.json` and
    /// `adapter_model.safetensors`. `name` is that of the checkpoint; by default it is `imported`.
    ///
    /// # Errors
    /// If the adapter does not fit the model or does something that the server cannot compute, or
    /// if the server has no such endpoint: it is not part of the official API, and the local server
    /// of this project is the one that has it.
    pub async fn import_weights(
        &self,
        base_model: &str,
        name: Option<&str>,
        archive: Vec<u8>,
    ) -> Result<ImportedWeights, Error> {
        let name = name.map(|name| ("name", name.into()));
        let query = [("base_model", base_model.into())].into_iter().chain(name);
        let mut call = Call::new(&endpoint::IMPORT_WEIGHTS);
        call.payload = Payload::Archive(archive.into());
        self.json(call.query(query).timeout(TIMEOUT)).await
    }
}
