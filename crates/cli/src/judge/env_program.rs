//! An environment that is a program of the user's: JSON lines in, JSON lines out.
//!
//! Each request has an id, and the program answers in any order, so that one process plays many episodes at a
//! time. One task writes and another reads. What a single answer gets wrong fails one episode; a program that
//! ends, or writes what cannot be an answer, fails all that wait, and the next episode starts it again.
//! docs/environments.md has the protocol.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tinkrs::BoxError;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::{mpsc, oneshot};

use super::group::Group;
use super::shell::{Shell, excerpt, listen, short};

/// How many requests may wait to be written.
const QUEUE: usize = 64;
/// No answer takes more bytes than this.
const LONGEST_LINE: usize = 16 << 20;

/// A program that is an environment. It is killed when this is dropped.
pub(crate) struct EnvProgram {
    command: String,
    patience: Duration,
    running: Mutex<Arc<Process>>,
}

/// The program as it runs now.
pub(super) struct Process {
    command: String,
    patience: Duration,
    requests: mpsc::Sender<String>,
    state: Arc<Mutex<State>>,
    /// The program is killed when this is dropped.
    _in_use: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    next: u64,
    answers: u64,
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    /// Why it is of no more use.
    failure: Option<String>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl EnvProgram {
    /// Starts the program, and gives up on a request that takes it longer than `patience`.
    pub(crate) fn start(command: &str, patience: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            command: command.to_owned(),
            patience,
            running: Mutex::new(Arc::new(Process::start(command, patience)?)),
        })
    }

    /// Returns the program as it runs, started again if it has failed after it was of some use.
    pub(super) fn process(&self) -> Result<Arc<Process>, BoxError> {
        let mut running = self
            .running
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        let is_over = {
            let state = locked(&running.state);
            state.failure.is_some() && state.answers > 0
        };
        if is_over {
            *running = Arc::new(Process::start(&self.command, self.patience)?);
        }
        Ok(Arc::clone(&running))
    }
}

impl Process {
    fn start(command: &str, patience: Duration) -> anyhow::Result<Self> {
        let Shell {
            group,
            mut stdin,
            stdout,
            stderr,
        } = Shell::start(command)?;
        let (requests, mut asked) = mpsc::channel::<String>(QUEUE);
        let state = Arc::new(Mutex::new(State::default()));
        let complaints = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(async move {
            while let Some(line) = asked.recv().await {
                // A program that does not read is one that ends, or times out.
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        let listening = tokio::spawn(listen(stderr, Arc::clone(&complaints)));
        let reader = Reader {
            command: command.to_owned(),
            group,
            stdout: BufReader::new(stdout),
        };
        let shared = Arc::clone(&state);
        let (in_use, unused) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let problem = tokio::select! {
                problem = reader.read(&shared) => problem,
                // Nobody has use for it.
                _ = unused => return,
            };
            // What it says when it ends may still be on its way.
            let _ = tokio::time::timeout(Duration::from_secs(1), listening).await;
            let mut state = locked(&shared);
            state.failure = Some(problem + &excerpt(&complaints));
            state.waiting.clear();
        });
        Ok(Self {
            command: command.to_owned(),
            patience,
            requests,
            state,
            _in_use: in_use,
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask(&self, mut request: Value) -> Result<Value, BoxError> {
        let (reply, replied) = oneshot::channel();
        let id = {
            let mut state = locked(&self.state);
            if let Some(failure) = &state.failure {
                return Err(failure.clone().into());
            }
            state.next += 1;
            let id = state.next;
            state.waiting.insert(id, reply);
            id
        };
        request["id"] = json!(id);
        let exchange = async {
            // If nobody writes any more, the reader says why.
            let _ = self.requests.send(format!("{request}\n")).await;
            replied.await
        };
        let answer = tokio::time::timeout(self.patience, exchange).await;
        let mut state = locked(&self.state);
        state.waiting.remove(&id);
        match answer {
            Ok(Ok(answer)) => match answer.get("error") {
                None | Some(Value::Null) => Ok(answer),
                Some(Value::String(words)) => {
                    Err(format!("`{}` says: {words}", self.command).into())
                }
                Some(other) => Err(format!("`error` is {}, expected a text", short(&other.to_string())).into()),
            },
            Ok(Err(_)) => {
                let failure = state.failure.clone();
                Err(failure.unwrap_or("the program is gone".to_owned()).into())
            }
            Err(_) => Err(format!(
                "`{}` wrote no answer to a `{}` for {} s: does it flush its output after each line?",
                self.command,
                request["type"].as_str().unwrap_or_default(),
                self.patience.as_secs_f64()
            )
            .into()),
        }
    }

    /// Tells the program something that needs no answer, if there is room for it.
    pub(super) fn tell(&self, notice: &Value) {
        let _ = self.requests.try_send(format!("{notice}\n"));
    }
}

struct Reader {
    command: String,
    group: Group,
    stdout: BufReader<ChildStdout>,
}

impl Reader {
    /// Hands out answers until something is wrong, and says what.
    async fn read(mut self, state: &Mutex<State>) -> String {
        let problem = loop {
            match self.next_line().await {
                Ok(Some(line)) => {
                    if let Err(problem) = hand_out(&line, state) {
                        let line = short(line.trim_end());
                        break format!("`{}` wrote `{line}`: {problem}", self.command);
                    }
                }
                Ok(None) => break self.gave_up().await,
                Err(problem) => break problem,
            }
        };
        self.group.end().await;
        problem
    }

    async fn next_line(&mut self) -> Result<Option<String>, String> {
        let mut line = Vec::new();
        let mut stdout = (&mut self.stdout).take(LONGEST_LINE as u64);
        let read = stdout.read_until(b'\n', &mut line).await;
        read.map_err(|error| format!("the output of `{}` cannot be read: {error}", self.command))?;
        if line.len() == LONGEST_LINE && !line.ends_with(b"\n") {
            return Err(format!(
                "a line of the output of `{}` has more than {LONGEST_LINE} bytes",
                self.command
            ));
        }
        Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()))
    }

    /// Says how the program has ended or, if it has not, what it did instead of answering.
    async fn gave_up(&mut self) -> String {
        let ended = self.group.leader.wait();
        let how = match tokio::time::timeout(Duration::from_secs(1), ended).await {
            Ok(Ok(status)) => format!("ended ({status})"),
            _ => "closed its output".to_owned(),
        };
        format!("`{}` {how}", self.command)
    }
}

/// Gives an answer to the one who asked, if the asker still waits.
fn hand_out(line: &str, state: &Mutex<State>) -> Result<(), String> {
    if line.trim().is_empty() {
        return Ok(());
    }
    let answer: Value = serde_json::from_str(line).map_err(|_| {
        "that is not JSON; what is for people goes to stderr, one answer a line to stdout"
            .to_owned()
    })?;
    let id = answer.get("id").and_then(Value::as_u64);
    let id = id.ok_or("it has no `id` of a request")?;
    let mut state = locked(state);
    if id == 0 || id > state.next {
        return Err(format!("there was no request with the `id` {id}"));
    }
    state.answers += 1;
    // One that came too late has nobody who waits for it.
    if let Some(reply) = state.waiting.remove(&id) {
        let _ = reply.send(answer);
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    async fn asked(command: &str, patience: Duration) -> Result<Value, String> {
        let program = EnvProgram::start(command, patience).unwrap();
        let process = program.process().unwrap();
        let answer = process.ask(json!({"type": "start"})).await;
        answer.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn nonsense_crashes_and_silence_are_named_and_never_waited_for() {
        let cases = [
            ("read -r l; echo hello", "wrote `hello`: that is not JSON"),
            ("read -r l; echo '{}'", "it has no `id` of a request"),
            (
                "read -r l; echo '{\"id\": 7}'",
                "no request with the `id` 7",
            ),
            (
                "read -r l; echo '{\"id\": 1, \"error\": 3}'; read -r l",
                "`error` is 3, expected a text",
            ),
            (
                "read -r l; echo '{\"id\": 1, \"error\": \"no such task\"}'; read -r l",
                "says: no such task",
            ),
            (
                "read -r l; echo 'no key' >&2; exit 3",
                "ended (exit status: 3)\nits stderr:\nno key",
            ),
            ("exit 0", "ended (exit status: 0)"),
        ];
        for (command, expected) in cases {
            let error = asked(command, Duration::from_secs(20)).await.unwrap_err();
            assert!(error.contains(expected), "{command}: {error}");
        }
        let error = asked("exec sleep 1000", Duration::from_millis(100)).await;
        let error = error.unwrap_err();
        assert!(
            error.contains("wrote no answer to a `start` for 0.1 s"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn answers_come_in_any_order_and_a_program_that_ends_is_started_again() {
        let command =
            "read -r a; read -r b; echo '{\"id\": 2, \"n\": 2}'; echo '{\"id\": 1, \"n\": 1}'";
        let program = EnvProgram::start(command, Duration::from_secs(20)).unwrap();
        for _ in 0..2 {
            let process = program.process().unwrap();
            let ask = || process.ask(json!({"type": "step"}));
            let (first, second) = tokio::join!(ask(), ask());
            assert_eq!(first.unwrap()["n"], 1);
            assert_eq!(second.unwrap()["n"], 2);
            // It has ended, or is about to.
            let error = process.ask(json!({})).await.unwrap_err().to_string();
            assert!(error.contains("ended (exit status: 0)"), "{error}");
        }
    }
}
