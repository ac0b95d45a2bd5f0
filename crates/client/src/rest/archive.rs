use super::client::RestClient;
use crate::Error;
use crate::connection::call::Call;
use std::time::Duration;
use tinkrs_types::TinkerPath;
use tinkrs_wire::endpoint;

/// How long a server may take to put an archive together and send it.
const TIMEOUT: Duration = Duration::from_secs(1800);

impl RestClient {
    /// Returns the files of a checkpoint as a tar archive, in memory.
    ///
    /// Weights to sample from have no other way out. For files that were saved to be downloaded, and may be
    /// large, there is [`download_checkpoint`](Self::download_checkpoint).
    ///
    /// # Errors
    /// If there is no such checkpoint, or the server gives no archives.
    pub async fn get_checkpoint_archive(&self, path: &TinkerPath) -> Result<Vec<u8>, Error> {
        let call = Call::at(&endpoint::GET_CHECKPOINT_ARCHIVE, path);
        self.bytes(call.timeout(TIMEOUT)).await
    }
}
