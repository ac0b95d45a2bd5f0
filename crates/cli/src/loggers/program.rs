//! A program that gets a line of JSON for each step.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::judge::shell::{Shell, excerpt, listen};
use crate::output::note;

/// Lines that wait for a program that is slow. More are left out: training does not wait for it.
const WAITING: usize = 1024;
/// How long a program may take when there are no more lines.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A program that runs.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    lines: mpsc::Sender<String>,
    writes: JoinHandle<Result<(), String>>,
    left_out: usize,
    gone: bool,
}

impl Program {
    /// Starts a program in a shell. `name` is for messages.
    pub(super) fn start(command: &str, name: &str) -> anyhow::Result<Self> {
        let Shell {
            mut group,
            mut stdin,
            mut stdout,
            stderr,
        } = Shell::start(command)?;
        let (lines, mut waiting) = mpsc::channel::<String>(WAITING);
        let complaints = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(listen(stderr, Arc::clone(&complaints)));
        // What it prints is not ours to show, and must not fill its pipe.
        tokio::spawn(async move { tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await });
        let writes = tokio::spawn(async move {
            let mut failed = false;
            while let Some(line) = waiting.recv().await {
                failed = stdin.write_all(line.as_bytes()).await.is_err();
                if failed {
                    break;
                }
            }
            drop(stdin);
            let ended = tokio::time::timeout(END_TIMEOUT, group.leader.wait()).await;
            let problem = match ended {
                Ok(Ok(status)) if status.success() && !failed => None,
                Ok(Ok(status)) => Some(format!("ended ({status})")),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("did not end for {} s", END_TIMEOUT.as_secs())),
            };
            group.end().await;
            match problem {
                None => Ok(()),
                Some(problem) => Err(format!("{problem}{}", excerpt(&complaints))),
            }
        });
        Ok(Self {
            name: name.to_owned(),
            lines,
            writes,
            left_out: 0,
            gone: false,
        })
    }

    /// Hands it a line, unless too many wait.
    pub(super) fn send(&mut self, line: &Value) {
        match self.lines.try_send(format!("{line}\n")) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => self.left_out += 1,
            Err(mpsc::error::TrySendError::Closed(_)) => {
                if !self.gone {
                    self.gone = true;
                    note(format_args!(
                        "{} has ended; the run goes on without it",
                        self.name
                    ));
                }
            }
        }
    }

    /// Waits until it has read everything.
    pub(super) async fn end(self) {
        drop(self.lines);
        let ended = self.writes.await;
        let ended = ended.unwrap_or_else(|error| Err(error.to_string()));
        if let Err(problem) = ended {
            note(format_args!("warning: {}: {problem}", self.name));
        }
        if self.left_out > 0 {
            let lines = crate::human::counted(self.left_out as u64, "line");
            note(format_args!(
                "warning: {} was too slow: {lines} left out",
                self.name
            ));
        }
    }
}
