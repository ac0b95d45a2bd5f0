//! The lines that the user says: edited on a terminal, with those of earlier conversations, else as they come.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use super::interrupts::Interrupts;
use crate::model_store;
use crate::output::note;

const PROMPT: &str = "> ";
const FILE: &str = "chat_history";
/// How many lines are remembered.
const MEMORY: usize = 1000;

/// Where lines come from.
pub(super) enum Lines {
    Edited(Box<Editor>),
    /// From a file, a pipe, or a terminal while the answers go elsewhere.
    Plain,
}

pub(super) struct Editor {
    editor: DefaultEditor,
    /// Where lines are remembered, if there is such a place.
    history: Option<PathBuf>,
}

impl Lines {
    /// Edits lines if the user sees both them and the answers.
    pub(super) fn open() -> Self {
        if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
            return Self::Plain;
        }
        // Without an editor, as on a terminal that can do nothing, there are still lines.
        match Editor::open() {
            Ok(editor) => Self::Edited(Box::new(editor)),
            Err(_) => Self::Plain,
        }
    }

    /// Reads a line; `None` at the end of the input and on Ctrl-C.
    pub(super) async fn next(&mut self, interrupts: &Interrupts) -> anyhow::Result<Option<String>> {
        match std::mem::replace(self, Self::Plain) {
            Self::Edited(mut editor) => {
                // On a terminal in raw mode, Ctrl-C is a key.
                let reading = tokio::task::spawn_blocking(move || {
                    let line = editor.read();
                    (editor, line)
                });
                let (editor, line) = reading.await?;
                *self = Self::Edited(editor);
                line
            }
            Self::Plain => plain(interrupts).await,
        }
    }
}

impl Editor {
    fn open() -> Result<Self, ReadlineError> {
        let config = Config::builder()
            .max_history_size(MEMORY)?
            .history_ignore_dups(true)?
            .history_ignore_space(true)
            .build();
        let mut editor = DefaultEditor::with_config(config)?;
        let history = model_store::home().map(|home| home.join(FILE));
        let history = history.filter(|path| make_private(path).is_ok());
        if let Some(path) = &history {
            // A file that cannot be read is no reason not to talk.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    fn read(&mut self) -> anyhow::Result<Option<String>> {
        let line = match self.editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(None),
            Err(error) => return Err(error).context("could not read your message"),
        };
        if !line.trim().is_empty() && !has_key(&line) {
            let _ = self.editor.add_history_entry(line.as_str());
            if let Some(path) = &self.history {
                let _ = self.editor.append_history(path);
            }
        }
        Ok(Some(line))
    }
}

/// Makes a file that only its owner can read, if it is not there.
fn make_private(path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?;
    #[cfg(unix)]
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(())
}

/// Whether a line has something in it that looks like a key, which must not be stored.
fn has_key(line: &str) -> bool {
    const BEGINNINGS: [&str; 4] = ["tml-", "sk-", "hf_", "ghp_"];
    let mut words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    words.any(|word| {
        let mut beginnings = BEGINNINGS.iter();
        word.len() >= 8 && beginnings.any(|beginning| word.starts_with(beginning))
    })
}

async fn plain(interrupts: &Interrupts) -> anyhow::Result<Option<String>> {
    let reading = tokio::task::spawn_blocking(|| {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "{PROMPT}").and_then(|()| stderr.flush());
        }
        let mut line = Vec::new();
        stdin
            .lock()
            .read_until(b'\n', &mut line)
            .map(|count| (count > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
    });
    let line = tokio::select! {
        biased;
        () = interrupts.next() => None,
        line = reading => line?.context("could not read your message")?,
    };
    if line.is_none() && std::io::stdin().is_terminal() {
        note("");
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_key_is_not_remembered() {
        for line in [
            "my key is tml-abcdef123",
            "TINKER_API_KEY=tml-0123456",
            "hf_abcdefgh",
        ] {
            assert!(has_key(line), "{line}");
        }
        for line in ["hello", "a tml-key", "what is sk-?", "/set seed 3"] {
            assert!(!has_key(line), "{line}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_was_said_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join(FILE);
        for _ in 0..2 {
            make_private(&path).unwrap();
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        }
    }
}
