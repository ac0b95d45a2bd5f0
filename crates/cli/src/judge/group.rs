//! Ending a program together with all that it has started.
//!
//! A shell that is killed leaves its children behind. So a program gets a process group of its own,
//! which is killed as a whole. Being in a group of its own also keeps Ctrl-C from it: the command that
//! waits for its answers decides when it ends.

use std::sync::{Mutex, MutexGuard};

use tokio::process::{Child, Command};

/// The groups that run, for when there is no time to drop them one by one.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// A program and what it has started. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) leader: Child,
    id: Option<u32>,
}

impl Group {
    /// Starts a program as the first of a group.
    pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Self> {
        #[cfg(unix)]
        command.process_group(0);
        let leader = command.kill_on_drop(true).spawn()?;
        let id = leader.id();
        running().extend(id);
        Ok(Self { leader, id })
    }

    /// Ends it, and waits until it has ended.
    pub(crate) async fn end(mut self) {
        self.kill();
        // It may be gone already.
        let _ = self.leader.kill().await;
    }

    fn kill(&mut self) {
        if let Some(id) = self.id.take() {
            running().retain(|running| *running != id);
            kill(id);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ends every program that still runs. For the end of this one, which drops nothing.
pub(crate) fn end_all() {
    std::mem::take(&mut *running()).into_iter().for_each(kill);
}

#[cfg(unix)]
fn kill(group: u32) {
    use rustix::process::{Pid, Signal, kill_process_group};

    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        // All of them may have ended by themselves.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(not(unix))]
fn kill(_: u32) {}
