//! How a model's conversations are written: a chat format and the tokenizer under it.

use std::path::Path;
use std::sync::{Arc, Once};

use anyhow::Context;
use tinkrs::TokenizerSource;
use tinkrs::rest::download::OnProgress;
use tinkrs_chat::format::{self, ChatTemplate};
use tinkrs_chat::{Renderer, Tokenizer};

use crate::local_model;
use crate::output;

/// Returns the way a model's conversations are written: as `template` says, else as its folder or its name
/// does. `folder` is where the model is, if it is on this machine.
pub(crate) fn renderer(
    model: &str,
    folder: Option<&Path>,
    template: Option<&str>,
) -> anyhow::Result<Renderer> {
    let own = folder.map(|path| {
        let source = local_model::tokenizer_source(path);
        source.unwrap_or_else(|| path.to_owned())
    });
    let load = || match &own {
        Some(path) => Ok(Arc::new(Tokenizer::from_path(path)?)),
        None => {
            let source = TokenizerSource::new(model);
            let tokenizer = source.on_progress(download_note(model)).load();
            tokenizer.context("could not load the model's tokenizer")
        }
    };
    if let Some(wanted) = template.filter(|wanted| *wanted != "auto") {
        let tokenizer = load()?;
        let renderer = match format::by_name(wanted) {
            Some(format) => Renderer::with_format(tokenizer, format),
            None => {
                let template = ChatTemplate::from_file(wanted, tokenizer.path());
                let template = template.with_context(|| {
                    if Path::new(wanted).exists() {
                        return format!("--template: {wanted} cannot be used");
                    }
                    format!(
                        "--template: `{wanted}` is neither a Jinja file nor the name of a chat format"
                    )
                })?;
                Renderer::new(tokenizer, template)
            }
        };
        return renderer.with_context(|| format!("--template: `{wanted}` does not fit the model"));
    }
    let tokenizer = load()?;
    let beside = || tokenizer.path().parent().map(Path::to_owned);
    let files = own.clone().or_else(beside).unwrap_or_default();
    let has_template = ChatTemplate::source_of(&files).is_ok();
    let renderer = if own.is_some() && has_template {
        Renderer::new(tokenizer, ChatTemplate::from_path(files)?)
    } else if let Some(format) = format::of_model(model) {
        Renderer::with_format(tokenizer, format)
    } else if has_template {
        Renderer::new(tokenizer, ChatTemplate::from_path(files)?)
    } else {
        output::note(format_args!(
            "{model} has no chat template: prompts and completions are joined as plain text; `--template` names a \
             chat format"
        ));
        Renderer::new(tokenizer, format::Completion::of_path(files))
    };
    renderer.with_context(|| format!("could not use the chat format of `{model}`"))
}

/// Says once that the tokenizer is downloaded, which can take a while.
fn download_note(model: &str) -> OnProgress {
    let note = format!("downloading the tokenizer of {model} from the Hugging Face Hub");
    let once = Once::new();
    Arc::new(move |_| once.call_once(|| output::note(&note)))
}
