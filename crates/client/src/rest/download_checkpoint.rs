use super::client::RestClient;
use super::download::{DownloadOptions, Downloaded, download_files};
use crate::Error;
use crate::training::BoxFuture;
use std::future::IntoFuture;
use std::path::PathBuf;
use tinkrs_types::{CheckpointKind, TinkerPath};

/// A download that has been described but not begun. Await it to begin.
#[derive(Clone, Debug)]
#[must_use = "nothing is downloaded until this is awaited"]
pub struct DownloadCheckpoint {
    client: RestClient,
    path: TinkerPath,
    folder: PathBuf,
    options: DownloadOptions,
}

impl RestClient {
    /// Downloads the files of an external checkpoint into a folder.
    ///
    /// A download that broke off continues where it stopped when it is begun again in the same
    /// folder. Checkpoints of other kinds have no files to download: save one with
    /// [`TrainingClient::save_weights_external`](crate::TrainingClient::save_weights_external).
    pub fn download_checkpoint(
        &self,
        path: TinkerPath,
        folder: impl Into<PathBuf>,
    ) -> DownloadCheckpoint {
        DownloadCheckpoint {
            client: self.clone(),
            path,
            folder: folder.into(),
            options: DownloadOptions::default(),
        }
    }
}

impl DownloadCheckpoint {
    /// Sets how many files at a time, size limits, and who hears of progress.
    pub fn options(mut self, options: DownloadOptions) -> Self {
        self.options = options;
        self
    }

    async fn download(self) -> Result<Downloaded, Error> {
        const NAME: &str = "download_checkpoint";
        self.path.require(CheckpointKind::External)?;
        let http = self.client.service().connection(NAME).await?.downloads();
        let (client, path) = (self.client, self.path);
        let links = move || {
            let (client, path) = (client.clone(), path.clone());
            async move { client.get_external_weights_urls(&path).await }
        };
        Ok(download_files(http, links, &self.folder, &self.options).await?)
    }
}

impl IntoFuture for DownloadCheckpoint {
    type Output = Result<Downloaded, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.download())
    }
}
