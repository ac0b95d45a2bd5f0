//! `tinkrs data show` and `data stats`: what training sees of a file.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tinkrs_chat::{Example, Renderer, TrainOn};
use tinkrs_recipes::data::{DataFormat, Form, Place, Record, Rows, parse_row};
use tinkrs_recipes::dpo::Preference;

use crate::chat_format;
use crate::context::Context;
use crate::local_model;
use crate::output::{note, say};
use crate::remote_tokenizer;
use crate::server_args::{Choice, Environment, ServerArgs, Target};
use crate::table::{Table, printable};

/// A file, and the model that is to learn from it
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// File or folder to look at: JSON lines, a JSON array, CSV, TSV or plain text, also compressed with gzip or zstd;
    /// Parquet, Arrow, or a Hugging Face dataset
    file: PathBuf,

    /// What it is, if that is not found out right: jsonl, json, csv, tsv, text, parquet or arrow, and which members
    /// count: messages, alpaca, pairs, preferences or plain
    #[arg(long, value_name = "FORMAT")]
    data_format: Option<DataFormat>,

    /// Model whose tokens and chat format count
    #[arg(long, value_name = "MODEL", default_value = tinkrs_nano::NAME)]
    model: String,

    /// Chat format: a Jinja file, a name such as `qwen3_5_disable_thinking`, or `auto`
    #[arg(long, value_name = "FILE|NAME|auto")]
    template: Option<String>,

    /// Which tokens count
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    train_on: TrainOn,

    #[command(flatten)]
    server: ServerArgs,
}

/// What is made of a row: an example, or both answers of a preference.
struct RowSequences {
    place: Place,
    sequences: Vec<Sequence>,
}

/// What a model reads at once.
struct Sequence {
    /// Of two answers that are compared, which one it ends with.
    answer: Option<&'static str>,
    example: Example,
}

/// Show the examples that a model would learn from, with what counts marked
///
/// Tokens that count are green on a terminal and stand in ⟦ ⟧ elsewhere; a weight other than 1 stands before
/// them.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    file: FileArgs,

    /// Examples to show
    #[arg(long, value_name = "N", default_value_t = 3)]
    count: usize,

    /// Examples to leave out before
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
}

/// Count the examples of a file and their tokens
#[derive(Debug, clap::Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    file: FileArgs,

    /// Longest example, in tokens: how many are longer is counted
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
}

impl FileArgs {
    async fn renderer(&self) -> anyhow::Result<Renderer> {
        let files = tempfile::tempdir().context("could not make a folder")?;
        let wanted = local_model::find(&self.model)?;
        let model = wanted
            .map(|wanted| wanted.place(files.path()))
            .transpose()?;
        let name = model.as_ref().map_or(&self.model, |model| &model.name);
        let choice = self.server.choose(model.is_some(), &Environment::read());
        let folder = match (&model, choice) {
            (Some(model), _) => Some(model.path.clone()),
            (None, Choice::Url(url)) => {
                note(format_args!("server: {url}, model {name}"));
                let service = Target::Url(url).client().build();
                remote_tokenizer::fetch(&service, name, files.path()).await?
            }
            (None, Choice::Local | Choice::Hosted) => None,
        };
        chat_format::renderer(name, folder.as_deref(), self.template.as_deref())
    }

    /// Returns the examples of the file row by row, each with its place.
    fn examples(
        &self,
        renderer: &Renderer,
    ) -> anyhow::Result<(String, impl Iterator<Item = anyhow::Result<RowSequences>>)> {
        let rows = Rows::open_as(&self.file, self.data_format.unwrap_or_default())?;
        let layout = rows.to_string();
        note(format_args!("{}: {layout}", self.file.display()));
        let are_pairs = rows.form() == Some(Form::Preferences);
        let examples = rows.map(move |row| {
            let (place, text) = row?;
            if are_pairs {
                let preference: Preference = parse_row(&text, &place)?;
                let pair = preference.pair(renderer);
                let pair = pair.map_err(|error| error.at(&place))?;
                let answers = [("chosen", pair.chosen), ("rejected", pair.rejected)];
                let answers = answers.map(|(answer, example)| Sequence {
                    answer: Some(answer),
                    example,
                });
                let sequences = answers.into();
                return Ok(RowSequences { place, sequences });
            }
            let record: Record = parse_row(&text, &place)?;
            let example = record.example(renderer, self.train_on);
            let example = example.map_err(|error| error.at(&place))?;
            let answer = None;
            let sequences = vec![Sequence { answer, example }];
            Ok(RowSequences { place, sequences })
        });
        Ok((layout, examples))
    }
}

pub(super) async fn show(ctx: &Context, args: &ShowArgs) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Shown {
        line: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<&'static str>,
        text: String,
        tokens: Vec<u32>,
        weights: Vec<f32>,
    }
    ensure!(args.count > 0, "--count: 0, expected 1 or more");
    let renderer = args.file.renderer().await?;
    let (_, examples) = args.file.examples(&renderer)?;
    let mut shown = Vec::new();
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for row in examples.skip(args.skip).take(args.count) {
        let RowSequences { place, sequences } = row?;
        for Sequence { answer, example } in sequences {
            if ctx.is_json() {
                shown.push(Shown {
                    line: place.number(),
                    answer,
                    text: renderer.vocabulary().decode(&example.tokens)?,
                    tokens: example.tokens,
                    weights: example.weights,
                });
                continue;
            }
            let (all, counted) = (example.tokens.len(), example.counted());
            let answer = answer.map(|answer| format!(", {answer}"));
            say(format_args!(
                "{} {}{}: {all} tokens, {counted} of them count",
                place.unit(),
                place.number(),
                answer.unwrap_or_default()
            ))?;
            say(marked(&renderer, &example, colours)?)?;
        }
    }
    if ctx.is_json() {
        return ctx.show(&shown, || Table::new(["Line"]));
    }
    Ok(())
}

/// Returns the text of an example with what counts marked.
fn marked(renderer: &Renderer, example: &Example, colours: bool) -> anyhow::Result<String> {
    let mut text = String::new();
    let tokens: Vec<_> = example.tokens.iter().zip(&example.weights).collect();
    for run in tokens.chunk_by(|(_, one), (_, other)| one == other) {
        let (_, weight) = run[0];
        let ids: Vec<u32> = run.iter().map(|(token, _)| **token).collect();
        let said = renderer.vocabulary().decode(&ids)?;
        // Line breaks stay, what would change the terminal does not.
        let said: Vec<String> = said.split('\n').map(printable).collect();
        let said = said.join("\n");
        let before = match *weight {
            0.0 | 1.0 => String::new(),
            weight => format!("{weight}×"),
        };
        match (*weight == 0.0, colours) {
            (true, _) => text.push_str(&said),
            (false, true) => text.push_str(&format!("\u{1b}[32m{before}{said}\u{1b}[0m")),
            (false, false) => text.push_str(&format!("⟦{before}{said}⟧")),
        }
    }
    Ok(text)
}

pub(super) async fn stats(ctx: &Context, args: &StatsArgs) -> anyhow::Result<()> {
    #[derive(Default, Serialize)]
    struct Stats {
        layout: String,
        examples: usize,
        tokens: usize,
        tokens_that_count: usize,
        shortest: usize,
        median: usize,
        longest: usize,
        max_tokens: usize,
        longer_than_max_tokens: usize,
        duplicates: usize,
    }
    let renderer = args.file.renderer().await?;
    let (layout, examples) = args.file.examples(&renderer)?;
    let (mut lengths, mut seen) = (Vec::new(), HashSet::new());
    let mut stats = Stats {
        layout,
        max_tokens: args.max_tokens,
        ..Stats::default()
    };
    for row in examples {
        let RowSequences { sequences, .. } = row?;
        for Sequence { example, .. } in sequences {
            stats.tokens += example.tokens.len();
            stats.tokens_that_count += example.counted();
            stats.longer_than_max_tokens += usize::from(example.tokens.len() > args.max_tokens);
            stats.duplicates += usize::from(!seen.insert(hash(&example.tokens)));
            lengths.push(example.tokens.len());
        }
    }
    lengths.sort_unstable();
    stats.examples = lengths.len();
    stats.shortest = lengths.first().copied().unwrap_or(0);
    stats.median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    stats.longest = lengths.last().copied().unwrap_or(0);
    ctx.show(&stats, || {
        let mut table = Table::properties();
        table.row(["Layout", &stats.layout]);
        for (name, count) in [
            ("Examples", stats.examples),
            ("Tokens", stats.tokens),
            ("Tokens that count", stats.tokens_that_count),
            ("Shortest, in tokens", stats.shortest),
            ("Median", stats.median),
            ("Longest", stats.longest),
            ("Duplicates", stats.duplicates),
        ] {
            table.row([name, &count.to_string()]);
        }
        let longer = stats.longer_than_max_tokens.to_string();
        table.row([&format!("Longer than {}", stats.max_tokens), &longer]);
        table
    })
}

/// A 128-bit hash of tokens: examples of a file that share one are taken to be the same.
fn hash(tokens: &[u32]) -> u128 {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    })
}
