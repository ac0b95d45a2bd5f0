//! Reading what the database has for the studio, where that holds up nobody.

use tinkrs_types::ModelId;

use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::store::studio::Reading;

impl Server {
    /// Reads from the database on a thread that may wait.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self, &Reading<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let server = self.clone();
        let result = tokio::task::spawn_blocking(move || {
            let reading = server.shared().store.read_for_studio()?;
            read(&server, &reading)
        });
        let stopped = |error: tokio::task::JoinError| ApiError::unavailable(error.to_string());
        result.await.map_err(stopped)?
    }

    /// Finds a run of an owner by its id or name.
    pub(crate) fn own_run(&self, owner: Owner, text: &str) -> Result<ModelId, ApiError> {
        let registry = self.registry();
        let id = registry.run_id(owner, text)?;
        match registry.find_stored_run(owner, &id)? {
            Some(record) => Ok(record.id),
            None => Err(ApiError::not_found(format!("there is no model `{id}`"))),
        }
    }
}
