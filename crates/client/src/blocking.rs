//! The same API for code without async.
//!
//! Everything that is awaited elsewhere can be waited for here: bring [`Wait`] into scope and
//! call `.wait()` where async code says `.await`. The work runs on a runtime that the process
//! shares, so results go on arriving between two calls.
//!
//! ```no_run
//! use tinkrs::blocking::Wait;
//! use tinkrs::{AdamParams, Datum, ServiceClient};
//!
//! # fn main() -> Result<(), tinkrs::Error> {
//! let service = ServiceClient::from_env();
//! let client = service.create_lora_training_client("Qwen/Qwen3-8B").rank(16).wait()?;
//! let batch = vec![Datum::from_prompt_completion(&[1, 2], &[3])?];
//!
//! let step = client.forward_backward(batch).submit(); // pipelined, as in async code
//! let update = client.optim_step(AdamParams::new(1e-4)).submit();
//! println!("loss {:?}", step.wait()?.loss());
//! update.wait()?;
//!
//! let runs = service.create_rest_client().list_training_runs().wait()?;
//! println!("{} runs", runs.cursor.total_count);
//! # Ok(()) }
//! ```

use std::future::IntoFuture;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// Waits for what async code would await.
pub trait Wait: IntoFuture {
    /// Blocks this thread until the result is there.
    ///
    /// In async code use `.await` instead. There this works too, but it holds up the thread.
    fn wait(self) -> Self::Output;

    /// Blocks this thread until the result is there, for no longer than `limit`; `None` if it is not there
    /// by then.
    ///
    /// What is waited for is dropped then. To be able to wait again, lend it:
    /// `(&mut pending).wait_timeout(limit)`.
    fn wait_timeout(self, limit: Duration) -> Option<Self::Output>;
}

impl<F> Wait for F
where
    F: IntoFuture + Send,
    F::IntoFuture: Send,
    F::Output: Send,
{
    fn wait(self) -> Self::Output {
        block_on(async { self.into_future().await })
    }

    fn wait_timeout(self, limit: Duration) -> Option<Self::Output> {
        block_on(async move {
            let result = tokio::time::timeout(limit, self.into_future());
            result.await.ok()
        })
    }
}

fn block_on<F>(future: F) -> F::Output
where
    F: Future + Send,
    F::Output: Send,
{
    let block = || RUNTIME.block_on(future);
    if Handle::try_current().is_err() {
        return block();
    }
    // A runtime's own thread must not drive another one, so another thread does.
    std::thread::scope(|scope| match scope.spawn(block).join() {
        Ok(output) => output,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// One thread is enough: it only moves bytes.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tinkrs")
        .enable_all()
        .build()
        .expect("the system can start a thread")
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_is_waited_for_and_its_tasks_go_on_afterwards() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let started = async move {
            tokio::spawn(async move { sender.send(7) });
        };
        started.wait();
        assert_eq!(receiver.wait(), Ok(7));
    }

    #[tokio::test]
    async fn waiting_inside_a_runtime_works_too() {
        assert_eq!(async { 7 }.wait(), 7);
    }
}
