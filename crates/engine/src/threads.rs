//! The threads that compute.

use std::fmt;
use std::sync::Arc;

use crate::Error;

/// More would only wait for each other, and the system may not have them.
const MOST: usize = 1024;

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
    /// When `count` is not from 1 to 1024, or the system refuses a thread.
    pub fn new(count: usize) -> Result<Self, Error> {
        if !(1..=MOST).contains(&count) {
            let problem = format!("found {count}, expected 1 to {MOST}");
            return Err(Error::invalid("threads", problem));
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
        Self::new(
            std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MOST),
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_threads_and_far_too_many_are_refused() {
        for count in [0, 100_000] {
            let error = Threads::new(count).unwrap_err().to_string();
            let expected = format!("found {count}, expected 1 to 1024");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
