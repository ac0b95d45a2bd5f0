//! Rewards as tables of a TOML file: `[[reward]]`, with a `type`, a `weight`, and what the type needs.

use super::schema::Schema;
use crate::evaluate::Check;
use regex::Regex;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// One reward: what is graded how, and how much it counts.
#[derive(Clone, Debug)]
pub struct RewardSpec {
    /// Its name in metrics: that of its type unless given.
    pub name: String,
    /// What its score, from 0 to 1 for most types, is multiplied with.
    pub weight: f64,
    /// What is graded.
    pub kind: Kind,
    /// What was written.
    table: Map<String, Value>,
}

/// What a reward is given for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// `exact`, `words` or `contains`: the answer is compared as text.
    Text(Check),
    /// `number`: the last number of the answer is the right one, or near enough.
    Number(NumberSpec),
    /// `regex`: the answer matches an expression.
    Regex(RegexSpec),
    /// `math`: the answer has the same value.
    Math,
    /// `json_schema`: the answer is JSON that keeps to a schema.
    JsonSchema(Schema),
    /// `unit_tests`: the program in the answer passes tests.
    UnitTests(UnitTestsSpec),
    /// `judge`: a language model grades by a rubric.
    Judge(JudgeSpec),
    /// `reward_model`: a model that was trained on preferences grades.
    RewardModel(RewardModelSpec),
    /// `command`: a program grades.
    Command(CommandSpec),
}

/// How far a number may be off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NumberSpec {
    /// By so much.
    pub tolerance: f64,
    /// By this part of the right number.
    pub relative: f64,
}

/// Which expression an answer matches.
#[derive(Clone, Debug, Default)]
pub struct RegexSpec {
    /// The expression; the `answer` of the row unless given. If it has a group and the row an `answer`, what the
    /// group matches must be that.
    pub pattern: Option<Regex>,
}

/// How tests are run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnitTestsSpec {
    /// The program and its arguments, run in a folder of its own with both files.
    pub command: Vec<String>,
    /// The file for the code of the answer: its last block between fences, or all of it.
    pub solution_file: String,
    /// The file for the tests.
    pub tests_file: String,
    /// The member of the row with the tests: a text, or a list of texts, of which the part that passes counts.
    pub tests: String,
    /// What stands before the tests.
    pub preamble: String,
    /// Seconds that tests may take, and as many of processor time.
    pub seconds: u64,
    /// Memory of a process, in MiB.
    pub memory_mb: u64,
    /// Whether tests may be run where the network cannot be taken away from them.
    pub allow_network: bool,
}

impl Default for UnitTestsSpec {
    fn default() -> Self {
        Self {
            command: vec!["python3".to_owned(), "tests.py".to_owned()],
            solution_file: "solution.py".to_owned(),
            tests_file: "tests.py".to_owned(),
            tests: "tests".to_owned(),
            preamble: "from solution import *".to_owned(),
            seconds: 10,
            memory_mb: 512,
            allow_network: false,
        }
    }
}

/// Who judges, and by what.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeSpec {
    /// What makes an answer good.
    pub rubric: String,
    /// The model that judges: on the same service, or what the endpoint calls it. The model that is trained, as it
    /// was before, unless given.
    pub model: Option<String>,
    /// A checkpoint that judges, on the same service.
    pub checkpoint: Option<String>,
    /// An endpoint like OpenAI's that judges, such as `http://127.0.0.1:8000/v1`.
    pub url: Option<String>,
    /// The environment variable with the endpoint's key.
    pub api_key_env: Option<String>,
    /// The lowest and the highest score.
    pub scale: [f64; 2],
    /// Most tokens of a judgement.
    pub max_tokens: u32,
    /// Randomness of the judgement.
    pub temperature: f64,
    /// Seconds that a judgement may take.
    pub seconds: u64,
    /// How often the judge is asked again when there is no score in what it says, or none comes.
    pub retries: u32,
}

impl Default for JudgeSpec {
    fn default() -> Self {
        Self {
            rubric: String::new(),
            model: None,
            checkpoint: None,
            url: None,
            api_key_env: None,
            scale: [0.0, 10.0],
            max_tokens: 512,
            temperature: 0.0,
            seconds: 60,
            retries: 2,
        }
    }
}

/// A model that was trained to say what answers are worth: `log p("Yes") − log p("No")`, the higher the better.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardModelSpec {
    /// It: a run, the folder of one, or a checkpoint, on the same service.
    pub model: String,
    /// What it was trained to be asked. A run of the reward recipe says that itself.
    pub question: Option<String>,
}

/// A program that grades.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// It, as typed into a shell.
    pub command: String,
    /// Seconds that it may take for an answer.
    #[serde(default = "a_minute")]
    pub seconds: u64,
}

fn a_minute() -> u64 {
    60
}

const TYPES: [&str; 11] = [
    "exact",
    "words",
    "contains",
    "number",
    "regex",
    "math",
    "json_schema",
    "unit_tests",
    "judge",
    REWARD_MODEL,
    "command",
];

const REWARD_MODEL: &str = "reward_model";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatternSettings {
    pattern: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchemaSettings {
    schema: Option<Value>,
    schema_file: Option<PathBuf>,
}

impl RewardSpec {
    /// Reads a table.
    ///
    /// # Errors
    /// If a key is missing, unknown or out of range; the error names the type and the key.
    pub fn new(table: Map<String, Value>) -> Result<Self, String> {
        let mut rest = table.clone();
        let types = TYPES.join(", ");
        let name = match rest.remove("type") {
            Some(Value::String(name)) => name,
            Some(other) => return Err(format!("`type`: {other}, expected one of {types}")),
            None => return Err(format!("no `type`, expected one of {types}")),
        };
        let wrong = |problem: String| format!("reward `{name}`: {problem}");
        let weight = match rest.remove("weight") {
            None => 1.0,
            Some(value) => {
                let number = value.as_f64().filter(|number| number.is_finite());
                number.ok_or_else(|| wrong(format!("`weight`: {value}, expected a number")))?
            }
        };
        let shown = match rest.remove("name") {
            None => name.clone(),
            Some(Value::String(shown)) if !shown.is_empty() => shown,
            Some(other) => return Err(wrong(format!("`name`: {other}, expected a text"))),
        };
        let kind = kind(&name, rest).map_err(wrong)?;
        Ok(Self {
            name: shown,
            weight,
            kind,
            table,
        })
    }

    /// Makes the table of a reward model alone.
    ///
    /// # Errors
    /// If the name of the model or the question is empty.
    pub fn reward_model(model: &str, question: Option<&str>) -> Result<Self, String> {
        let keys = [
            ("type", Some(REWARD_MODEL)),
            ("model", Some(model)),
            ("question", question),
        ];
        let keys = keys
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), Value::from(value?))));
        Self::new(keys.collect())
    }

    /// Reads the tables `[[reward]]` of a TOML file.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if there is none or anything else in the file.
    pub fn read_toml(text: &str) -> Result<Vec<Self>, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            reward: Vec<RewardSpec>,
        }
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.reward.is_empty() {
            return Err("no `[[reward]]` in it".to_owned());
        }
        Ok(file.reward)
    }
}

fn settings<T: DeserializeOwned>(rest: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(rest)).map_err(|error| error.to_string())
}

fn kind(name: &str, rest: Map<String, Value>) -> Result<Kind, String> {
    let text = |check, rest| settings::<NoSettings>(rest).map(|_| Kind::Text(check));
    Ok(match name {
        "exact" => text(Check::Exact, rest)?,
        "words" => text(Check::Words, rest)?,
        "contains" => text(Check::Contains, rest)?,
        "math" => settings::<NoSettings>(rest).map(|_| Kind::Math)?,
        "number" => {
            let spec: NumberSpec = settings(rest)?;
            for (key, value) in [("tolerance", spec.tolerance), ("relative", spec.relative)] {
                if !(value >= 0.0 && value.is_finite()) {
                    return Err(format!("`{key}`: {value}, expected 0 or more"));
                }
            }
            Kind::Number(spec)
        }
        "regex" => {
            let PatternSettings { pattern } = settings(rest)?;
            let pattern = pattern.map(|text| expression(&text)).transpose();
            let pattern = pattern.map_err(|error| format!("`pattern`: {error}"))?;
            Kind::Regex(RegexSpec { pattern })
        }
        "json_schema" => Kind::JsonSchema(schema(settings(rest)?)?),
        "unit_tests" => {
            let spec: UnitTestsSpec = settings(rest)?;
            at_least_one("seconds", spec.seconds)?;
            at_least_one("memory_mb", spec.memory_mb)?;
            if spec.command.is_empty() {
                return Err("`command` is empty".to_owned());
            }
            for (key, file) in [
                ("solution_file", &spec.solution_file),
                ("tests_file", &spec.tests_file),
            ] {
                if file.is_empty() || file.contains(['/', '\\']) || file.starts_with('.') {
                    return Err(format!("`{key}`: `{file}` is no plain name of a file"));
                }
            }
            if spec.solution_file == spec.tests_file {
                return Err("`tests_file` is the same as `solution_file`".to_owned());
            }
            Kind::UnitTests(spec)
        }
        "judge" => {
            let spec: JudgeSpec = settings(rest)?;
            check_judge(&spec)?;
            Kind::Judge(spec)
        }
        REWARD_MODEL => {
            let spec: RewardModelSpec = settings(rest)?;
            let question = spec.question.as_deref().unwrap_or("a question");
            for (key, text) in [("model", spec.model.as_str()), ("question", question)] {
                if text.trim().is_empty() {
                    return Err(format!("`{key}` is empty"));
                }
            }
            Kind::RewardModel(spec)
        }
        "command" => {
            let spec: CommandSpec = settings(rest)?;
            at_least_one("seconds", spec.seconds)?;
            Kind::Command(spec)
        }
        _ => {
            let types = TYPES.join(", ");
            return Err(format!("not a type of reward, expected one of {types}"));
        }
    })
}

/// Reads an expression, of a size that is compiled in no time.
pub(super) fn expression(text: &str) -> Result<Regex, regex::Error> {
    regex::RegexBuilder::new(text).size_limit(1 << 20).build()
}

fn at_least_one(key: &str, value: u64) -> Result<(), String> {
    if value == 0 {
        return Err(format!("`{key}`: 0, expected 1 or more"));
    }
    Ok(())
}

fn schema(settings: SchemaSettings) -> Result<Schema, String> {
    let schema = match (settings.schema, settings.schema_file) {
        (Some(schema), None) => schema,
        (None, Some(path)) => {
            let text = std::fs::read_to_string(&path);
            let text =
                text.map_err(|error| format!("`schema_file`: {}: {error}", path.display()))?;
            let read = serde_json::from_str(&text);
            read.map_err(|error| format!("`schema_file`: {}: {error}", path.display()))?
        }
        _ => return Err("expected either `schema` or `schema_file`".to_owned()),
    };
    Schema::new(&schema).map_err(|problem| format!("`schema`: {problem}"))
}

fn check_judge(spec: &JudgeSpec) -> Result<(), String> {
    if spec.rubric.trim().is_empty() {
        return Err("no `rubric`: what makes an answer good?".to_owned());
    }
    let [low, high] = spec.scale;
    if !(low.is_finite() && high.is_finite() && low < high) {
        return Err(format!(
            "`scale`: [{low}, {high}], expected a lower and a higher number"
        ));
    }
    if !(spec.temperature >= 0.0 && spec.temperature.is_finite()) {
        return Err(format!(
            "`temperature`: {}, expected 0 or more",
            spec.temperature
        ));
    }
    at_least_one("max_tokens", spec.max_tokens.into())?;
    at_least_one("seconds", spec.seconds)?;
    if spec.url.is_some() && spec.checkpoint.is_some() {
        return Err("`checkpoint` is on the same service, and `url` is another".to_owned());
    }
    if spec.url.is_some() && spec.model.is_none() {
        return Err("no `model`: what does the endpoint call it?".to_owned());
    }
    if spec.url.is_none() && spec.api_key_env.is_some() {
        return Err("`api_key_env` is for an endpoint, and there is no `url`".to_owned());
    }
    Ok(())
}

impl Serialize for RewardSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.table.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RewardSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Map::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Reads an inline table: `type = "regex", pattern = "^a"`, with or without braces.
impl std::str::FromStr for RewardSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Line {
            reward: RewardSpec,
        }
        let inner = text.trim();
        let inner = inner
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            .unwrap_or(inner);
        // A type alone needs nothing around it.
        if TYPES.contains(&inner.trim()) {
            let table = Map::from_iter([("type".to_owned(), Value::from(inner.trim()))]);
            return Self::new(table);
        }
        let line: Result<Line, _> = toml::from_str(&format!("reward = {{ {inner} }}"));
        line.map(|line| line.reward)
            .map_err(|error| error.message().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_table_names_the_type_and_the_key() {
        let cases = [
            ("weight = 1.0", "no `type`, expected one of exact"),
            ("type = \"exat\"", "not a type of reward"),
            ("type = \"exact\", wieght = 1", "unknown field `wieght`"),
            (
                "type = \"exact\", weight = \"much\"",
                "`weight`: \"much\", expected a number",
            ),
            (
                "type = \"number\", tolerance = -1",
                "`tolerance`: -1, expected 0 or more",
            ),
            ("type = \"regex\", pattern = \"(\"", "`pattern`: "),
            ("type = \"json_schema\"", "either `schema` or `schema_file`"),
            (
                "type = \"json_schema\", schema = { typ = 1 }",
                "`schema`: the keyword `typ` is not known",
            ),
            ("type = \"unit_tests\", seconds = 0", "`seconds`: 0"),
            (
                "type = \"unit_tests\", tests_file = \"../x\"",
                "no plain name",
            ),
            ("type = \"judge\"", "no `rubric`"),
            (
                "type = \"judge\", rubric = \"r\", scale = [1, 1]",
                "`scale`: [1, 1]",
            ),
            (
                "type = \"judge\", rubric = \"r\", url = \"http://a\"",
                "no `model`",
            ),
            ("type = \"reward_model\"", "missing field `model`"),
            ("type = \"reward_model\", model = \" \"", "`model` is empty"),
            (
                "type = \"reward_model\", model = \"a\", question = \"\"",
                "`question` is empty",
            ),
            (
                "type = \"reward_model\", model = \"a\", rubric = \"b\"",
                "unknown field `rubric`",
            ),
            ("type = ", ""),
        ];
        for (text, problem) in cases {
            let error = text.parse::<RewardSpec>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_table_may_stand_in_a_file_or_on_one_line() {
        let text = "[[reward]]\ntype = \"number\"\nrelative = 0.01\nweight = 0.5\n\n[[reward]]\ntype = \"math\"\n";
        let specs = RewardSpec::read_toml(text).unwrap();
        assert_eq!((specs[0].weight, specs[1].weight), (0.5, 1.0));
        assert_eq!(specs[1].name, "math");
        let line: RewardSpec = "{type = \"number\", relative = 0.01, name = \"near\"}"
            .parse()
            .unwrap();
        assert_eq!(line.name, "near");
        let short: RewardSpec = "math".parse().unwrap();
        assert!(matches!(short.kind, Kind::Math));
        let json = serde_json::to_value(&line).unwrap();
        let again: RewardSpec = serde_json::from_value(json).unwrap();
        assert_eq!(again.name, "near");
        for wrong in ["", "other = 1", "[[rewrad]]\ntype = \"math\""] {
            assert!(RewardSpec::read_toml(wrong).is_err(), "{wrong}");
        }
    }
}
