//! A folder in which commands run on this machine, without an account.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A folder in which commands run on this machine, without an account.
#[derive(Debug)]
pub(crate) struct Here {
    folder: tempfile::TempDir,
}

impl Here {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Copies the repository's example configurations to where they expect to be.
    pub(crate) fn with_examples(self) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/configs");
        let to = self.path("examples/configs");
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        self
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinkrs"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("TINKER_BASE_URL")
            .env_remove("TINKER_API_KEY")
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    /// Starts a server with these arguments.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Served {
        let mut child = self.start(&[&["serve", "--addr", "127.0.0.1:0"], arguments].concat());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ");
        let url = url.unwrap_or_else(|| panic!("{line}")).to_owned();
        Served { child, url }
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must succeed, and reads its output as JSON.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Runs a command that must fail, and returns its complaints.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output: Output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        stderr
    }
}

/// A server that ends with the test.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
