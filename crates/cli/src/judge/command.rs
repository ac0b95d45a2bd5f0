//! A program of the user's that judges answers, one JSON line in, one number out.
//!
//! One task writes questions and another reads numbers, so neither the program nor we wait for the
//! other's pipe to have room. Questions are answered in order: the writer hands each question's
//! reply to the reader before it writes the question. When the program fails, the reason is kept,
//! and everybody who waits or asks later gets it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinkrs::BoxError;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};

use super::group::Group;
use super::shell::{Shell, excerpt, listen, short};

/// How many questions may wait to be written.
const QUEUE: usize = 64;
/// No number takes more bytes than this.
const LONGEST_LINE: usize = 4096;

/// A running program that judges answers. It is killed when this is dropped.
pub(crate) struct JudgeCommand {
    questions: mpsc::Sender<Question>,
    failure: watch::Receiver<Option<String>>,
}

struct Question {
    line: String,
    reply: oneshot::Sender<f64>,
}

impl JudgeCommand {
    /// Starts the program in a shell, and gives up on it when it takes longer than `patience` for
    /// an answer.
    pub(crate) fn start(command: &str, patience: Duration) -> anyhow::Result<Self> {
        let Shell {
            group,
            stdin,
            stdout,
            stderr,
        } = Shell::start(command)?;

        let (questions, asked) = mpsc::channel(QUEUE);
        let (replies, waiting) = mpsc::channel(QUEUE);
        let (failed, failure) = watch::channel(None);
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let (breaks, broken) = watch::channel(false);
        tokio::spawn(write(asked, replies, stdin, breaks));
        let listening = tokio::spawn(listen(stderr, Arc::clone(&complaints)));
        let reader = Reader {
            command: command.to_owned(),
            group,
            stdout: BufReader::new(stdout),
            line: Vec::new(),
            broken,
            patience,
        };
        tokio::spawn(async move {
            let problem = reader.read(waiting).await;
            // What it says when it ends may still be on its way.
            let _ = tokio::time::timeout(Duration::from_secs(1), listening).await;
            failed.send_replace(Some(problem + &excerpt(&complaints)));
        });
        Ok(Self { questions, failure })
    }

    /// Asks for the reward of an answer.
    pub(crate) async fn ask(&self, question: &serde_json::Value) -> Result<f64, BoxError> {
        let (reply, replied) = oneshot::channel();
        let line = format!("{question}\n");
        // If the task that writes questions is gone, the reply is dropped, and the reason comes below.
        let _ = self.questions.send(Question { line, reply }).await;
        match replied.await {
            Ok(reward) => Ok(reward),
            Err(_) => {
                let mut failure = self.failure.clone();
                let problem = failure.wait_for(Option::is_some).await;
                let problem = problem.ok().and_then(|problem| problem.clone());
                Err(problem.unwrap_or("the program is gone".to_owned()).into())
            }
        }
    }
}

/// Writes questions until there are no more, or the program stops reading.
async fn write(
    mut asked: mpsc::Receiver<Question>,
    replies: mpsc::Sender<oneshot::Sender<f64>>,
    mut stdin: ChildStdin,
    breaks: watch::Sender<bool>,
) {
    while let Some(Question { line, reply }) = asked.recv().await {
        if replies.send(reply).await.is_err() {
            // The reader knows why.
            break;
        }
        if stdin.write_all(line.as_bytes()).await.is_err() {
            breaks.send_replace(true);
            break;
        }
    }
}

struct Reader {
    command: String,
    group: Group,
    stdout: BufReader<ChildStdout>,
    /// What has come of the next line.
    line: Vec<u8>,
    /// Whether a question could not be written.
    broken: watch::Receiver<bool>,
    patience: Duration,
}

impl Reader {
    /// Hands out numbers until something is wrong, and says what.
    async fn read(mut self, mut waiting: mpsc::Receiver<oneshot::Sender<f64>>) -> String {
        let mut number = 1;
        let problem = loop {
            match self.answer(number, &mut waiting).await {
                Ok(true) => number += 1,
                Ok(false) => break "no more questions".to_owned(),
                Err(problem) => break problem,
            }
        };
        self.group.end().await;
        problem
    }

    /// Hands out one number. Returns whether a question waited for it.
    async fn answer(
        &mut self,
        number: usize,
        waiting: &mut mpsc::Receiver<oneshot::Sender<f64>>,
    ) -> Result<bool, String> {
        let reply = tokio::select! {
            // The asker waits before the question is written.
            biased;
            reply = waiting.recv() => reply,
            line = self.next_line() => {
                let Some(line) = line? else {
                    return Err(self.gave_up(number, "closed its output").await);
                };
                return Err(format!(
                    "`{}` wrote `{}` without being asked: it must write one line for each that it reads",
                    self.command,
                    short(line.trim_end())
                ));
            }
        };
        let Some(reply) = reply else { return Ok(false) };
        let (mut broken, patience) = (self.broken.clone(), self.patience);
        let breaks = async { broken.wait_for(|broken| *broken).await.is_ok() };
        let line = tokio::select! {
            biased;
            line = self.next_line() => line?,
            true = breaks => {
                return Err(self.gave_up(number, "stopped reading its input").await);
            }
            () = tokio::time::sleep(patience) => {
                return Err(format!(
                    "`{}` wrote no answer for {} s after {} answers: does it flush its output after \
                     each line?",
                    self.command,
                    patience.as_secs(),
                    number - 1
                ));
            }
        };
        let Some(line) = line else {
            return Err(self.gave_up(number, "closed its output").await);
        };
        match line.trim().parse::<f64>() {
            Ok(reward) if reward.is_finite() => {
                // The asker may have been dropped.
                let _ = reply.send(reward);
                Ok(true)
            }
            _ => Err(format!(
                "line {number} of the output of `{}` is not a number: `{}`",
                self.command,
                short(line.trim_end())
            )),
        }
    }

    /// Reads a line, or as much of it as no number has; `None` at the end. If this is dropped, the next
    /// call goes on with the same line.
    async fn next_line(&mut self) -> Result<Option<String>, String> {
        let room = LONGEST_LINE.saturating_sub(self.line.len()) as u64;
        let mut stdout = (&mut self.stdout).take(room);
        let read = stdout.read_until(b'\n', &mut self.line).await;
        read.map_err(|error| format!("the output of `{}` cannot be read: {error}", self.command))?;
        let mut line = std::mem::take(&mut self.line);
        if line.len() == LONGEST_LINE && !line.ends_with(b"\n") {
            // The beginning of a number is another number.
            line.extend("…".as_bytes());
        }
        Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()))
    }

    /// Says how the program has ended or, if it has not, what it did instead of answering.
    async fn gave_up(&mut self, number: usize, otherwise: &str) -> String {
        let ended = self.group.leader.wait();
        let how = match tokio::time::timeout(Duration::from_secs(1), ended).await {
            Ok(Ok(status)) => format!("ended ({status})"),
            _ => otherwise.to_owned(),
        };
        format!("`{}` {how} before answer {number}", self.command)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use serde_json::json;

    async fn judged(command: &str, questions: usize) -> Vec<Result<f64, String>> {
        let judge = JudgeCommand::start(command, Duration::from_secs(20)).unwrap();
        let ask = |number: usize| {
            let judge = &judge;
            async move {
                let question = json!({"completion": "é".repeat(number)});
                judge
                    .ask(&question)
                    .await
                    .map_err(|error| error.to_string())
            }
        };
        futures_util::future::join_all((0..questions).map(ask)).await
    }

    #[tokio::test]
    async fn questions_are_answered_in_order_and_many_at_a_time() {
        let lengths = judged("while read -r line; do echo ${#line}; done", 300).await;
        let lengths: Vec<_> = lengths.into_iter().map(Result::unwrap).collect();
        let steps: Vec<f64> = lengths.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            steps.iter().all(|step| *step == steps[0] && *step > 0.0),
            "{steps:?}"
        );
    }

    #[tokio::test]
    async fn a_program_that_fails_says_why_to_everybody() {
        let script = "read -r line; echo 1; echo 'no such model' >&2; exit 3";
        let answers = judged(script, 3).await;
        assert_eq!(answers[0], Ok(1.0));
        for answer in &answers[1..] {
            let error = answer.as_ref().unwrap_err();
            assert!(
                error.contains("exit status: 3") && error.contains("before answer 2"),
                "{error}"
            );
            assert!(error.ends_with("its stderr:\nno such model"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_not_a_number_is_shown_with_its_line() {
        for word in ["good", "NaN", "inf", ""] {
            let script =
                format!("read -r line; echo 0.5; read -r line; echo '{word}'; read -r line");
            let answers = judged(&script, 2).await;
            let error = answers[1].as_ref().unwrap_err();
            assert!(error.starts_with("line 2 of the output"), "{error}");
            assert!(
                error.contains(&format!("not a number: `{word}`")),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn an_output_without_a_question_is_no_reward() {
        // Two numbers for a question: the second must not become the next one's answer.
        let judge = "while read -r line; do echo 1; echo 2; done";
        let judge = JudgeCommand::start(judge, Duration::from_secs(20)).unwrap();
        assert_eq!(judge.ask(&json!({})).await.unwrap(), 1.0);
        let mut failure = judge.failure.clone();
        let problem = failure.wait_for(Option::is_some).await.unwrap().clone();
        let problem = problem.unwrap();
        assert!(
            problem.contains("wrote `2` without being asked"),
            "{problem}"
        );
        let error = judge.ask(&json!({})).await.unwrap_err().to_string();
        assert_eq!(error, problem);
    }

    #[tokio::test]
    async fn a_program_that_stops_reading_is_told_from_one_that_ends() {
        let script = "read -r line; exec <&-; echo 1; exec sleep 1000";
        let judge = JudgeCommand::start(script, Duration::from_secs(20)).unwrap();
        assert_eq!(judge.ask(&json!({})).await.unwrap(), 1.0);
        let error = judge.ask(&json!({})).await.unwrap_err().to_string();
        assert!(
            error.ends_with("stopped reading its input before answer 2"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_not_kept() {
        let script = "read -r line; while :; do printf 0; done";
        let answers = judged(script, 1).await;
        let error = answers[0].as_ref().unwrap_err();
        assert!(error.contains("is not a number: `000"), "{error}");
        assert!(error.len() < 300, "{error}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn what_a_program_has_started_ends_with_it() {
        // Its first answer is the id of the process; there is no second one.
        let script = "read -r line; sleep 1000 & echo $!; wait";
        let judge = JudgeCommand::start(script, Duration::from_millis(200)).unwrap();
        let id = judge.ask(&json!({})).await.unwrap();
        judge.ask(&json!({})).await.unwrap_err();
        // The system may take a while to clean up after it.
        let stat = format!("/proc/{id}/stat");
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let gone = async {
            while runs() {
                tokio::task::yield_now().await;
            }
        };
        let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
        assert!(gone.is_ok(), "{id} still runs");
    }

    #[tokio::test]
    async fn a_program_that_keeps_its_answers_to_itself_is_given_up_on() {
        let judge = JudgeCommand::start("cat > /dev/null", Duration::from_millis(50)).unwrap();
        let error = judge.ask(&json!({})).await.unwrap_err().to_string();
        assert!(error.contains("flush its output"), "{error}");
    }
}
