//! The threads that compute.

use std::fmt;
use std::sync::Arc;

use crate::Error;

/// A pool of threads, shared by the models that are given it.
///
/// The number of threads changes how fast a result comes, never a bit of it.
#[derive(Clone)]
pub struct Threads {
    pool: Arc<rayon::ThreadPool>,
}

impl Threads {
    /// Starts `count` threads.
    ///
    /// # Errors
    ///
    /// When `count` is zero or the system refuses a thread.
    pub fn new(count: usize) -> Result<Self, Error> {
        if count == 0 {
            return Err(Error::invalid("threads", "0 is not a number of threads"));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("tinkrs-engine-{index}"))
            .build()
            .map_err(|error| Error::invalid("threads", error.to_string()))?;
        Ok(Self {
            pool: Arc::new(pool),
        })
    }

    /// Starts a thread for each core.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn all_cores() -> Result<Self, Error> {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Returns the number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs an operation on the pool, and waits for it.
    pub(crate) fn run<R: Send>(&self, operation: impl FnOnce() -> R + Send) -> R {
        self.pool.install(operation)
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("count", &self.count())
            .finish()
    }
}
