//! Checkpoints as people name them: `my-run`, `my-run@120`, `my-run@latest`, or a `tinker://` path.

use crate::path::SCHEME;
use crate::rest::Checkpoint;
use crate::{CheckpointKind, InvalidInput, ModelId, TinkerPath};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const LATEST: &str = "latest";
/// What recipes put before the number of steps in the names of their checkpoints.
const STEP: &str = "step-";

/// A checkpoint, by its path or by the name of its run.
///
/// A run is named by its name or its id; what follows `@` is a number of steps, the name of a checkpoint, or
/// `latest`, which is also what a bare name means. Where a client insists on it, `tinker://` may stand before.
///
/// ```
/// use tinkrs_types::{CheckpointRef, Which};
///
/// let named: CheckpointRef = "my-run@120".parse()?;
/// assert_eq!(named.run(), "my-run");
/// assert_eq!(named.which(), Some(&Which::Step(120)));
/// assert_eq!("tinker://my-run@120".parse::<CheckpointRef>()?, named);
///
/// let path: CheckpointRef = "tinker://s1:train:0/weights/step-000010".parse()?;
/// assert!(path.path().is_some());
/// # Ok::<(), tinkrs_types::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointRef(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// Its run may be a name, too.
    Path(TinkerPath),
    OfRun {
        run: String,
        which: Which,
    },
}

/// Which checkpoint of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The newest one.
    Latest,
    /// The one after so many steps.
    Step(u64),
    /// The one of this name.
    Name(String),
}

impl Which {
    fn matches(&self, path: &TinkerPath) -> bool {
        match self {
            Self::Latest => true,
            Self::Name(name) => path.name() == name,
            Self::Step(steps) => {
                let digits = path.name().strip_prefix(STEP).unwrap_or(path.name());
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                is_number && digits.parse() == Ok(*steps)
            }
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str(LATEST),
            Self::Step(steps) => write!(f, "{steps}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl CheckpointRef {
    /// Names the newest checkpoint of a run.
    pub fn latest(run: impl Into<String>) -> Self {
        Self(Form::OfRun {
            run: run.into(),
            which: Which::Latest,
        })
    }

    /// Returns the name or the id of the run.
    pub fn run(&self) -> &str {
        match &self.0 {
            Form::Path(path) => path.run().as_str(),
            Form::OfRun { run, .. } => run,
        }
    }

    /// Returns the path, if it is one. Its run may be a name.
    pub fn path(&self) -> Option<&TinkerPath> {
        match &self.0 {
            Form::Path(path) => Some(path),
            Form::OfRun { .. } => None,
        }
    }

    /// Returns which checkpoint of the run is meant, unless a path says it.
    pub fn which(&self) -> Option<&Which> {
        match &self.0 {
            Form::Path(_) => None,
            Form::OfRun { which, .. } => Some(which),
        }
    }

    /// Finds the path of the checkpoint once the id of its run is known. `checkpoints` are those of the run;
    /// `kinds` are the kinds that will do, the best one first.
    ///
    /// # Errors
    /// If the run has no such checkpoint; the error says which ones it has.
    pub fn select(
        &self,
        run: &ModelId,
        checkpoints: &[Checkpoint],
        kinds: &[CheckpointKind],
    ) -> Result<TinkerPath, InvalidInput> {
        let which = match &self.0 {
            Form::Path(path) => return TinkerPath::new(run.clone(), path.kind(), path.name()),
            Form::OfRun { which, .. } => which,
        };
        let newest = |kind: &CheckpointKind| {
            let matching = checkpoints.iter().filter(|checkpoint| {
                let path = &checkpoint.tinker_path;
                path.kind() == *kind && which.matches(path)
            });
            matching.max_by_key(|checkpoint| checkpoint.time)
        };
        let found = kinds.iter().find_map(newest);
        found.map(|found| found.tinker_path.clone()).ok_or_else(|| {
            let kinds: Vec<_> = kinds.iter().map(ToString::to_string).collect();
            let mut has: Vec<_> = checkpoints
                .iter()
                .map(|c| c.tinker_path.checkpoint_id())
                .collect();
            has.sort();
            let has = match has.as_slice() {
                [] => "none: the run has saved nothing yet, or it was deleted".to_owned(),
                has => format!("one of those of this run: {}", has.join(", ")),
            };
            let kinds = kinds.join(" or ");
            InvalidInput::new(
                "path",
                format_args!("`{self}`, as a {kinds} checkpoint"),
                has,
            )
        })
    }
}

impl From<TinkerPath> for CheckpointRef {
    fn from(path: TinkerPath) -> Self {
        Self(Form::Path(path))
    }
}

impl fmt::Display for CheckpointRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Path(path) => path.fmt(f),
            Form::OfRun { run, which } => write!(f, "{run}@{which}"),
        }
    }
}

impl FromStr for CheckpointRef {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        if rest.contains('/') {
            return text.parse().map(|path| Self(Form::Path(path)));
        }
        let refused = || {
            InvalidInput::new(
                "path",
                format_args!("`{text}`"),
                "`tinker://<run>/<kind>/<name>` with kind `weights`, `sampler_weights` or `external_weights`, \
                 or a run's name with the number of steps, the name of a checkpoint or `latest`, such as \
                 `my-run@120`",
            )
        };
        let (run, which) = match rest.split_once('@') {
            None => (rest, Which::Latest),
            Some((run, LATEST)) => (run, Which::Latest),
            Some((run, name)) if is_plain(name) => (run, read_which(name)),
            Some(_) => return Err(refused()),
        };
        // An id has colons; a name has none.
        if run.is_empty() || !run.split(':').all(is_plain) {
            return Err(refused());
        }
        let run = run.to_owned();
        Ok(Self(Form::OfRun { run, which }))
    }
}

fn read_which(name: &str) -> Which {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    match name.parse() {
        Ok(steps) if is_number => Which::Step(steps),
        _ => Which::Name(name.to_owned()),
    }
}

/// Whether a text has only characters that names have.
pub(crate) fn is_plain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

impl TryFrom<String> for CheckpointRef {
    type Error = InvalidInput;

    fn try_from(text: String) -> Result<Self, InvalidInput> {
        text.parse()
    }
}

impl From<CheckpointRef> for String {
    fn from(reference: CheckpointRef) -> Self {
        reference.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn each_form_is_read_and_printed() {
        let step = |steps| Some(Which::Step(steps));
        let name = |name: &str| Some(Which::Name(name.to_owned()));
        for (text, run, which, printed) in [
            ("my-run", "my-run", Some(Which::Latest), "my-run@latest"),
            (
                "my-run@latest",
                "my-run",
                Some(Which::Latest),
                "my-run@latest",
            ),
            ("my-run@120", "my-run", step(120), "my-run@120"),
            ("my-run@000120", "my-run", step(120), "my-run@120"),
            ("my-run@final", "my-run", name("final"), "my-run@final"),
            ("v1.2_b@step-1", "v1.2_b", name("step-1"), "v1.2_b@step-1"),
            ("tinker://my-run@3", "my-run", step(3), "my-run@3"),
            (
                "s:train:0",
                "s:train:0",
                Some(Which::Latest),
                "s:train:0@latest",
            ),
            // Longer than any number.
            (
                "a@99999999999999999999999",
                "a",
                name("99999999999999999999999"),
                "a@99999999999999999999999",
            ),
            (
                "tinker://s:train:0/weights/a",
                "s:train:0",
                None,
                "tinker://s:train:0/weights/a",
            ),
        ] {
            let read: CheckpointRef = text.parse().unwrap();
            assert_eq!((read.run(), read.which()), (run, which.as_ref()), "{text}");
            assert_eq!(read.to_string(), printed, "{text}");
            assert_eq!(printed.parse::<CheckpointRef>().unwrap(), read, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_forms_that_are_allowed() {
        for text in [
            "",
            "@",
            "@3",
            "a@",
            "a b",
            "a@b@c",
            "é",
            "a@ü",
            "tinker://",
            "a/b",
            "run/weights/a",
            "tinker://run/weights",
            "../x",
            "a\0",
            ":",
            "a::b",
            "http://x",
        ] {
            let error = text.parse::<CheckpointRef>().unwrap_err().to_string();
            assert!(
                error.contains("tinker://<run>/<kind>/<name>"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn the_newest_checkpoint_of_the_right_kind_is_selected() {
        let run = ModelId::new("s:train:0");
        let checkpoint = |id: &str, seconds: i64| {
            let path = format!("tinker://{run}/{id}").parse().unwrap();
            Checkpoint::new(path, Timestamp::from_second(seconds).unwrap())
        };
        let saved = [
            checkpoint("weights/step-000010", 10),
            checkpoint("weights/step-000020", 20),
            checkpoint("sampler_weights/20", 21),
            checkpoint("sampler_weights/best", 15),
            checkpoint("external_weights/download", 30),
        ];
        use CheckpointKind::{Sampler, Training};
        let select = |text: &str, kinds: &[CheckpointKind]| {
            let found = text
                .parse::<CheckpointRef>()
                .unwrap()
                .select(&run, &saved, kinds);
            found
                .map(|path| path.checkpoint_id())
                .map_err(|error| error.to_string())
        };
        for (text, kinds, expected) in [
            ("r", &[Training][..], "weights/step-000020"),
            ("r", &[Sampler], "sampler_weights/20"),
            ("r@10", &[Training], "weights/step-000010"),
            ("r@20", &[Sampler], "sampler_weights/20"),
            ("r@20", &[Training], "weights/step-000020"),
            ("r@best", &[Sampler], "sampler_weights/best"),
            ("r@step-000010", &[Training], "weights/step-000010"),
            ("r@best", &[Training, Sampler], "sampler_weights/best"),
            ("r@10", &[Sampler, Training], "weights/step-000010"),
            // A path is what it is; only its run may have been a name.
            ("tinker://r/weights/other", &[Sampler], "weights/other"),
        ] {
            assert_eq!(
                select(text, kinds).as_deref(),
                Ok(expected),
                "{text} {kinds:?}"
            );
        }
        let error = select("r@30", &[Training]).unwrap_err();
        assert!(
            error.contains("`r@30`, as a training checkpoint"),
            "{error}"
        );
        assert!(
            error.contains("sampler_weights/20, sampler_weights/best"),
            "{error}"
        );
        let nothing = "r"
            .parse::<CheckpointRef>()
            .unwrap()
            .select(&run, &[], &[Sampler]);
        assert!(
            nothing
                .unwrap_err()
                .to_string()
                .contains("saved nothing yet")
        );
    }
}
