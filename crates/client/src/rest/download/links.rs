//! Signed links, and new ones when they expire.

use super::error::DownloadError;
use crate::BoxError;
use std::pin::Pin;
use tinkrs_types::Timestamp;
use tinkrs_types::rest::ExternalWeightsUrls;
use tokio::sync::Mutex;

/// Links with less time left are renewed before they are used.
const MIN_SECONDS_LEFT: i64 = 5 * 60;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Ask = Box<dyn Fn() -> BoxFuture<Result<ExternalWeightsUrls, BoxError>> + Send + Sync>;

/// The links of a checkpoint's files, shared by all downloads of it.
pub(super) struct Links {
    ask: Ask,
    current: Mutex<Current>,
}

struct Current {
    urls: ExternalWeightsUrls,
    /// How often the links were renewed.
    generation: u64,
}

/// One file's link.
pub(super) struct Link {
    pub(super) url: String,
    generation: u64,
}

impl Link {
    /// Makes a link that does not expire.
    pub(super) fn fixed(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            generation: 0,
        }
    }
}

impl Links {
    /// Asks for the first links.
    pub(super) async fn request<A, F, E>(ask: A) -> Result<Self, DownloadError>
    where
        A: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<ExternalWeightsUrls, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let ask: Ask = Box::new(move || {
            let answer = ask();
            Box::pin(async move { answer.await.map_err(Into::into) })
        });
        let urls = ask().await.map_err(DownloadError::Links)?;
        Ok(Self {
            ask,
            current: Mutex::new(Current {
                urls,
                generation: 0,
            }),
        })
    }

    /// Returns the names of all files, in order.
    pub(super) async fn names(&self) -> Vec<String> {
        self.current
            .lock()
            .await
            .urls
            .urls
            .keys()
            .cloned()
            .collect()
    }

    /// Returns the link of a file, renewed if it has but little time left.
    pub(super) async fn of(&self, name: &str) -> Result<Link, DownloadError> {
        let mut current = self.current.lock().await;
        let left = current.urls.expires.as_second() - Timestamp::now().as_second();
        if left < MIN_SECONDS_LEFT {
            current.renew(&self.ask).await?;
        }
        match current.urls.urls.get(name) {
            Some(url) => Ok(Link {
                url: url.clone(),
                generation: current.generation,
            }),
            None => Err(DownloadError::Gone {
                name: name.to_owned(),
            }),
        }
    }

    /// Renews the links because this one was refused, unless somebody already has.
    pub(super) async fn renew(&self, refused: &Link) -> Result<(), DownloadError> {
        let mut current = self.current.lock().await;
        if current.generation == refused.generation {
            current.renew(&self.ask).await?;
        }
        Ok(())
    }
}

impl Current {
    async fn renew(&mut self, ask: &Ask) -> Result<(), DownloadError> {
        self.urls = ask().await.map_err(DownloadError::Links)?;
        self.generation += 1;
        Ok(())
    }
}
