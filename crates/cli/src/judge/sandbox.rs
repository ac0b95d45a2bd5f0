//! Running the code of an answer with tests, in a process that may take little.
//!
//! Time and memory are limited by `ulimit` of a shell, the network is taken away by `unshare`, which also ends what a
//! test has started. The environment is empty but for `PATH`, so that no key is in it, and the folder is a
//! temporary one. Files that the user can read or write are not kept from it: a container or another user does that.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tinkrs::BoxError;
use tinkrs_recipes::data::Task;
use tinkrs_recipes::graders::{UnitTestsSpec, code, tests};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::group::Group;

/// What a shell ends with if it cannot set a limit.
const NO_LIMIT: i32 = 125;
/// What shells and `unshare` end with if a program cannot be started.
const NOT_STARTED: [i32; 2] = [126, 127];
/// Largest file that a test may write, in blocks of 512 bytes.
const FILE_BLOCKS: u64 = 64 * 2048;
/// Takes the network, and the sight of other processes, away from a program.
const WITHOUT_NETWORK: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
];

/// How tests are run.
pub(super) struct Sandbox {
    spec: UnitTestsSpec,
    /// Whether the network is taken away.
    isolated: bool,
    turns: Semaphore,
}

impl Sandbox {
    /// Finds out which limits there are on this machine, and refuses to go on without one, unless that is allowed.
    pub(super) async fn open(spec: UnitTestsSpec) -> anyhow::Result<Self> {
        ensure!(
            cfg!(unix),
            "reward `unit_tests`: tests are run on Unix only"
        );
        let turns = std::thread::available_parallelism().map_or(1, usize::from);
        let mut sandbox = Self {
            spec,
            isolated: true,
            turns: Semaphore::new(turns),
        };
        let folder = tempfile::tempdir().context("could not make a folder for tests")?;
        let isolated = sandbox.run(folder.path(), &["true".to_owned()]).await;
        if let Err(problem) = isolated {
            ensure!(
                sandbox.spec.allow_network,
                "reward `unit_tests`: the network cannot be taken away from tests here ({problem}); `allow_network = true` runs \
                 them with it"
            );
            sandbox.isolated = false;
            let limited = sandbox.run(folder.path(), &["true".to_owned()]).await;
            if let Err(problem) = limited {
                bail!("reward `unit_tests`: time and memory cannot be limited here: {problem}");
            }
        }
        let program = &sandbox.spec.command[0];
        let look = ["sh", "-c", "command -v \"$1\"", "sh", program].map(str::to_owned);
        match sandbox.run(folder.path(), &look).await {
            Ok(true) => Ok(sandbox),
            _ => bail!("reward `unit_tests`: the program `{program}` is not found"),
        }
    }

    /// Says which limit is missing, if one is.
    pub(super) fn warning(&self) -> Option<&'static str> {
        (!self.isolated).then_some("warning: tests of answers run with the network of this machine")
    }

    /// Returns the part of the tests that the code of an answer passes.
    pub(super) async fn score(&self, task: &Task, answer: &str) -> Result<f64, BoxError> {
        let tests = tests(&self.spec, task)?;
        let mut passed = 0;
        for test in &tests {
            let _turn = self.turns.acquire().await?;
            let folder = tempfile::tempdir()?;
            let (solution, file) = (&self.spec.solution_file, &self.spec.tests_file);
            tokio::fs::write(folder.path().join(solution), code(answer)).await?;
            // Its name is not to be guessed by the code of the answer.
            let mark = folder.path().join(format!("{:032x}", fastrand::u128(..)));
            let end = last_line(file, test, &mark);
            let text = format!(
                "{}\n{test}\n{}",
                self.spec.preamble,
                end.as_deref().unwrap_or_default()
            );
            tokio::fs::write(folder.path().join(file), text).await?;
            let succeeded = self.run(folder.path(), &self.spec.command).await?;
            passed += usize::from(succeeded && (end.is_none() || mark.exists()));
        }
        Ok(passed as f64 / tests.len() as f64)
    }

    /// Runs a program to its end, or for as long as it may take. Returns whether it succeeded.
    async fn run(&self, folder: &Path, program: &[String]) -> Result<bool, String> {
        let UnitTestsSpec {
            seconds, memory_mb, ..
        } = self.spec;
        let limits = format!(
            "ulimit -c 0; ulimit -t {seconds} && ulimit -v {} && ulimit -f {FILE_BLOCKS} || exit {NO_LIMIT}; exec \"$@\"",
            memory_mb.saturating_mul(1024)
        );
        let mut command = Command::new("sh");
        command.args(["-c", &limits, "sh"]);
        if self.isolated {
            command.args(WITHOUT_NETWORK).arg("--");
        }
        command
            .args(program)
            .current_dir(folder)
            .env_clear()
            .env("HOME", folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        let group = Group::spawn(&mut command);
        let mut group = group.map_err(|error| format!("could not start a shell: {error}"))?;
        // Starting takes time, too, and a loaded machine more of it: the time of the processor is what the limit is.
        let limit = Duration::from_secs(seconds.saturating_add(1));
        let ended = tokio::time::timeout(limit, group.leader.wait()).await;
        group.end().await;
        let Ok(status) = ended else {
            return Ok(false);
        };
        let status = status.map_err(|error| error.to_string())?;
        match status.code() {
            Some(0) => Ok(true),
            Some(NO_LIMIT) => Err("the shell's `ulimit` refused a limit".to_owned()),
            Some(code) if NOT_STARTED.contains(&code) => Err(format!(
                "the program could not be started (exit code {code})"
            )),
            Some(code) if program[0] == "true" => {
                Err(format!("`unshare` ended with exit code {code}"))
            }
            _ => Ok(false),
        }
    }
}

/// Returns what tests end with to leave a mark: without it, code that ends the process before a test has failed would
/// pass. There is none in languages other than these, and where the tests end the process themselves.
fn last_line(file: &str, test: &str, mark: &Path) -> Option<String> {
    if ["exit(", "unittest.main(", "exit "]
        .iter()
        .any(|end| test.contains(end))
    {
        return None;
    }
    let mark = mark.to_str().filter(|mark| !mark.contains(['\'', '\\']))?;
    match file.rsplit_once('.')?.1 {
        "py" => Some(format!("open('{mark}', 'w').close()\n")),
        "sh" => Some(format!("[ $? = 0 ] && : > '{mark}'\n")),
        _ => None,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests_of_sandbox {
    use super::*;
    use serde_json::json;

    async fn opened(change: impl FnOnce(&mut UnitTestsSpec)) -> Sandbox {
        let mut spec = UnitTestsSpec {
            command: vec!["sh".to_owned(), "tests.sh".to_owned()],
            solution_file: "solution.sh".to_owned(),
            tests_file: "tests.sh".to_owned(),
            preamble: ". ./solution.sh".to_owned(),
            // Some machines that run tests have no namespaces.
            allow_network: true,
            ..UnitTestsSpec::default()
        };
        change(&mut spec);
        Sandbox::open(spec).await.unwrap()
    }

    fn task(tests: serde_json::Value) -> Task {
        serde_json::from_value(json!({"prompt": "q", "tests": tests})).unwrap()
    }

    #[tokio::test]
    async fn the_part_of_the_tests_that_passes_counts() {
        let sandbox = opened(|_| ()).await;
        let tests = task(json!([
            "[ \"$(double 2)\" = 4 ]",
            "[ \"$(double 3)\" = 7 ]"
        ]));
        let answer = "Here:\n```sh\ndouble() { echo $(($1 * 2)); }\n```\n";
        assert_eq!(sandbox.score(&tests, answer).await.unwrap(), 0.5);
        assert_eq!(sandbox.score(&tests, "no code").await.unwrap(), 0.0);
    }

    #[tokio::test]
    async fn code_that_ends_the_process_passes_no_test() {
        let sandbox = opened(|_| ()).await;
        let tests = task(json!("[ \"$(double 2)\" = 4 ]"));
        assert_eq!(sandbox.score(&tests, "exit 0").await.unwrap(), 0.0);
        let right = "double() { echo 4; }";
        assert_eq!(sandbox.score(&tests, right).await.unwrap(), 1.0);
        // The tests' own end counts.
        let ends = task(json!("[ \"$(double 2)\" = 4 ] && exit 0"));
        assert_eq!(sandbox.score(&ends, right).await.unwrap(), 1.0);
        let mark = Path::new("/tmp/m");
        let line = last_line("tests.py", "assert True", mark).unwrap();
        assert_eq!(line, "open('/tmp/m', 'w').close()\n");
        assert_eq!(last_line("tests.py", "unittest.main()", mark), None);
        assert_eq!(last_line("tests.rb", "check", mark), None);
    }

    #[tokio::test]
    async fn no_secret_of_the_environment_is_seen_and_no_key_gets_out() {
        let sandbox = opened(|_| ()).await;
        let tests = task(json!(
            "[ -z \"${CARGO_MANIFEST_DIR:-}\" ] && [ \"$HOME\" = \"$PWD\" ]"
        ));
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert_eq!(sandbox.score(&tests, ":").await.unwrap(), 1.0);
    }

    #[tokio::test]
    async fn a_test_that_hangs_or_takes_too_much_fails_and_what_it_started_ends() {
        let sandbox = opened(|spec| (spec.seconds, spec.memory_mb) = (1, 64)).await;
        let endless = task(json!("while :; do :; done"));
        assert_eq!(sandbox.score(&endless, ":").await.unwrap(), 0.0);
        let asleep = task(json!("sleep 1000 & sleep 1000"));
        assert_eq!(sandbox.score(&asleep, ":").await.unwrap(), 0.0);
        let large = task(json!(
            "x=$(head -c 200000000 /dev/zero | tr '\\0' a) && [ ${#x} = 200000000 ]"
        ));
        assert_eq!(sandbox.score(&large, ":").await.unwrap(), 0.0);
    }

    #[tokio::test]
    async fn the_network_is_not_there() {
        let sandbox = opened(|_| ()).await;
        if !sandbox.isolated {
            return;
        }
        // The only interface of a new namespace is a loopback that is down.
        let tests = task(json!("[ \"$(grep -c : /proc/net/dev)\" = 1 ]"));
        assert_eq!(sandbox.score(&tests, ":").await.unwrap(), 1.0);
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_no_grade() {
        let spec = UnitTestsSpec {
            command: vec!["no-such-program".to_owned()],
            allow_network: true,
            ..UnitTestsSpec::default()
        };
        let error = Sandbox::open(spec).await.err().unwrap().to_string();
        assert!(error.contains("`no-such-program` is not found"), "{error}");
    }
}
