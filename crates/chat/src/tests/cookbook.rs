//! Formats against the renderers of `tinker-cookbook`; see `tests/reference/cookbook.py`.

use super::data;
use crate::format::{self, GptOss, KNOWN, known_of_model};
use crate::testing::tokenizer;
use crate::{
    Conversation, Effort, Example, RenderOptions, Renderer, Tokenizer, TrainOn, Vocabulary,
};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Deserialize)]
struct Golden {
    /// The day that the package was told it is.
    date: String,
    models: BTreeMap<String, String>,
    conversations: BTreeMap<String, Conversation>,
    cases: Vec<Case>,
    refused: Vec<Refused>,
    qwen3_tokenizer: Vec<RealCase>,
}

/// What the package itself cannot write.
#[derive(Deserialize)]
struct Refused {
    format: String,
    conversation: String,
}

#[derive(Deserialize)]
struct Case {
    format: String,
    conversation: String,
    example: GoldenExample,
    prompt: Option<String>,
    prompt_text: Option<String>,
    prefilled: Option<String>,
}

#[derive(Deserialize)]
struct GoldenExample {
    #[serde(default)]
    text: String,
    tokens: String,
    masks: BTreeMap<TrainOn, Vec<usize>>,
}

/// A case with the real tokenizer of Qwen3.
#[derive(Deserialize)]
struct RealCase {
    format: String,
    conversation: String,
    example: String,
    prompt: String,
    masks: BTreeMap<TrainOn, Vec<usize>>,
}

fn golden() -> Golden {
    let text = std::fs::read_to_string(data("cookbook.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// FNV-1a over the tokens as 32-bit numbers, the lowest byte first.
fn hashed(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Why a conversation is written differently here, on purpose.
fn difference(format: &str, conversation: &str) -> Option<&'static str> {
    let qwen3 = format.starts_with("qwen3") && !format.starts_with("qwen3_8");
    let instruct = format == "qwen3_instruct" || format == "qwen3_vl_instruct";
    let chatml = qwen3 && !format.starts_with("qwen3_5");
    match conversation {
        "only calls" if chatml => {
            Some("the models' template puts neighbouring tool results into one message")
        }
        "steps" if qwen3 && !instruct && !format.contains("preserve") => {
            Some("the models' template keeps the thinking of all answers behind the last question")
        }
        "thinking" | "thinking and calls" | "steps" if instruct => {
            Some("thinking is written as Qwen3 writes it, on lines of its own, and kept")
        }
        "tools" | "only calls" | "thinking and calls" | "steps"
            if format.starts_with("gpt_oss") && !format.contains("no_sysprompt") =>
        {
            Some("harmony has one system message, not one for the effort and one for the tools")
        }
        "only calls" if format.starts_with("deepseekv3") => {
            Some("an answer of calls alone ends like any other")
        }
        "thinking and calls" if format == "deepseekv3_thinking" => {
            Some("an earlier answer loses its thinking also if it calls a tool")
        }
        "steps" if format.starts_with("deepseekv3") => {
            Some("an earlier answer loses its thinking also if it calls a tool")
        }
        "customized" if format == "tml_v0" => Some("the package's mask has answers only"),
        _ => None,
    }
}

/// Returns a format by the name of the package's renderer, set up as the reference was.
fn renderer(name: &str, golden: &Golden, tokenizer: Arc<Tokenizer>) -> Renderer {
    let effort = match name {
        "gpt_oss_low_reasoning" => Some(Effort::Low),
        "gpt_oss_medium_reasoning" => Some(Effort::Medium),
        "gpt_oss_high_reasoning" => Some(Effort::High),
        _ => None,
    };
    let format = match effort {
        None => format::by_name(name).unwrap_or_else(|| panic!("no format {name}")),
        Some(_) => Arc::new(GptOss {
            effort,
            date: Some(golden.date.clone()),
        }),
    };
    Renderer::with_format(tokenizer, format).unwrap()
}

/// The package hands Qwen3.5 functions without what wraps them in requests.
fn given(golden: &Golden, format: &str, conversation: &str) -> Conversation {
    let mut chat = golden.conversations[conversation].clone();
    if format.starts_with("qwen3_5") || format.starts_with("qwen3_8") {
        for tool in &mut chat.tools {
            *tool = tool.get("function").unwrap().clone();
        }
    }
    chat
}

/// Returns the weights that lengths of runs stand for.
fn weights(runs: &[usize]) -> Vec<f32> {
    let runs = runs.iter().enumerate();
    runs.flat_map(|(index, length)| vec![f32::from(u8::from(index % 2 == 1)); *length])
        .collect()
}

/// Cuts off the line break that templates write behind a last message, and the package does not.
fn without_last_line_break(
    mut example: Example,
    expected: usize,
    vocabulary: &Vocabulary,
) -> Example {
    let last = example.tokens.get(expected..).unwrap_or_default();
    if vocabulary.decode(last).unwrap() == "\n" && example.weights.last() == Some(&0.0) {
        example.tokens.truncate(expected);
        example.weights.truncate(expected);
    }
    example
}

/// Compares an example's weights; returns what differs.
///
/// In masks over several answers, the package counts or leaves out parts of the `<think>` block that a
/// prompt has begun already, depending on where an answer stands; here it is the same for all.
fn compare_weights(
    mask: TrainOn,
    example: &Example,
    expected: &[f32],
    vocabulary: &Vocabulary,
) -> Result<(), String> {
    let block = |token: u32| {
        let text = vocabulary.decode(&[token]).unwrap();
        ["<think>", "</think>", "\n", "\n\n"].contains(&text.as_str())
    };
    // In plain text the label of the user who speaks next is the way to stop, behind every answer.
    let stop = |end: usize| {
        let text = vocabulary.decode(&example.tokens[..=end]).unwrap();
        let label = text.rsplit_once("\n\n").map_or("", |(_, label)| label);
        !vocabulary.is_control(example.tokens[0]) && "User:".starts_with(label)
    };
    let tokens = example.tokens.iter().zip(&example.weights).zip(expected);
    for (index, ((token, weight), expected)) in tokens.enumerate() {
        if weight == expected {
            continue;
        }
        let excused = mask != TrainOn::LastAssistantMessage && (block(*token) || stop(index));
        if !excused {
            let text = vocabulary.decode(&example.tokens[..=index]).unwrap();
            return Err(format!(
                "{mask:?}: token {index} has weight {weight}: …{text:?}"
            ));
        }
    }
    Ok(())
}

/// Shows where two texts part.
fn differing(written: &str, expected: &str) -> String {
    let same = written.chars().zip(expected.chars());
    let same = same.take_while(|(one, other)| one == other).count();
    let rest = |text: &str| -> String {
        text.chars()
            .skip(same.saturating_sub(40))
            .take(200)
            .collect()
    };
    format!("…{:?}, not …{:?}", rest(written), rest(expected))
}

fn compare(case: &Case, golden: &Golden) -> Result<(), String> {
    let renderer = renderer(&case.format, golden, tokenizer());
    let vocabulary = renderer.vocabulary();
    let chat = given(golden, &case.format, &case.conversation);
    for (mask, runs) in &case.example.masks {
        let expected = weights(runs);
        let example = renderer
            .example(&chat, *mask)
            .map_err(|error| error.to_string())?;
        let example = without_last_line_break(example, expected.len(), vocabulary);
        if hashed(&example.tokens) != case.example.tokens {
            let text = vocabulary.decode(&example.tokens).unwrap();
            return Err(format!(
                "{mask:?}: {}",
                differing(&text, &case.example.text)
            ));
        }
        compare_weights(*mask, &example, &expected, vocabulary)?;
    }
    let every = renderer.example(&chat, TrainOn::AllTokens);
    if case.conversation != "customized" && every.unwrap().weights.contains(&0.0) {
        return Err("AllTokens does not count all".to_owned());
    }
    let context = Conversation {
        messages: chat.messages[..chat.messages.len() - 1].to_vec(),
        tools: chat.tools.clone(),
    };
    for (expected, options) in [
        (&case.prompt, RenderOptions::prompt()),
        (&case.prefilled, RenderOptions::prompt().prefill("Sure, it")),
    ] {
        let tokens = renderer.render_with(&context, &options).unwrap().tokens;
        if expected
            .as_ref()
            .is_some_and(|expected| *expected != hashed(&tokens))
        {
            let text = vocabulary.decode(&tokens).unwrap();
            let expected = case.prompt_text.as_ref().unwrap_or(&case.example.text);
            return Err(format!("the prompt: {}", differing(&text, expected)));
        }
    }
    Ok(())
}

#[test]
fn formats_write_what_the_cookbooks_renderers_write() {
    let golden = golden();
    let (mut failures, mut needless) = (Vec::new(), Vec::new());
    let (mut compared, mut formats) = (0, BTreeSet::new());
    for case in &golden.cases {
        let label = format!("{}, {}", case.format, case.conversation);
        match (
            difference(&case.format, &case.conversation),
            compare(case, &golden),
        ) {
            (None, Ok(())) => {
                compared += 1;
                formats.insert(case.format.as_str());
            }
            (None, Err(problem)) => failures.push(format!("{label}: {problem}")),
            (Some(_), Err(_)) => {}
            (Some(_), Ok(())) => needless.push(label),
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        golden.cases.len(),
        failures.join("\n")
    );
    assert!(needless.is_empty(), "not different: {needless:?}");
    assert_eq!((compared, formats.len()), (383, 43));
}

/// Returns why a mask of a conversation is not compared: the package has no such mask, or refuses the conversation
/// with it.
fn without_mask(format: &str, conversation: &str, mask: TrainOn) -> Option<&'static str> {
    let last = [TrainOn::LastAssistantMessage, TrainOn::LastAssistantTurn];
    let thinks = ["thinking", "thinking and calls", "steps"].contains(&conversation);
    match mask {
        TrainOn::AllTokens => Some("every token, without a reference"),
        _ if (mask == TrainOn::Customized) != (conversation == "customized") => {
            Some("for messages that say whether they count")
        }
        TrainOn::LastAssistantTurn | TrainOn::AllMessages | TrainOn::AllUserAndSystemMessages
            if format == "tml_v0" =>
        {
            Some("the renderer has answers only")
        }
        _ if format.ends_with("disable_thinking") && thinks && last.contains(&mask) => {
            Some("the last answer would learn to think where thinking is turned off")
        }
        TrainOn::LastAssistantTurn if format == "qwen3_disable_thinking" => {
            Some("a turn of several answers has several prompts")
        }
        _ => None,
    }
}

#[test]
fn every_cell_of_the_table_is_compared_or_the_package_has_none() {
    let golden = golden();
    let formats: BTreeSet<&str> = golden.cases.iter().map(|case| &*case.format).collect();
    assert_eq!(formats.len(), 43);
    let masks = [
        TrainOn::LastAssistantMessage,
        TrainOn::AllAssistantMessages,
        TrainOn::LastAssistantTurn,
        TrainOn::AllMessages,
        TrainOn::AllUserAndSystemMessages,
        TrainOn::Customized,
    ];
    let mut missing = Vec::new();
    for format in formats {
        for conversation in golden.conversations.keys() {
            let mut cases = golden.cases.iter();
            let case = cases.find(|c| c.format == format && c.conversation == *conversation);
            let mut refused = golden.refused.iter();
            let Some(case) = case else {
                if !refused.any(|r| r.format == format && r.conversation == *conversation) {
                    missing.push(format!("{format}, {conversation}"));
                }
                continue;
            };
            for mask in masks {
                let compared = case.example.masks.contains_key(&mask);
                if !compared && without_mask(format, conversation, mask).is_none() {
                    missing.push(format!("{format}, {conversation}, {mask:?}"));
                }
            }
            let begun = ["system", "turns", "thinking", "tools"].contains(&conversation.as_str());
            if (case.prompt.is_none() && conversation != "customized")
                || (case.prefilled.is_none() && begun && format != "tml_v0")
            {
                missing.push(format!("{format}, {conversation}, the prompt"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_model_of_the_cookbook_has_the_format_that_it_recommends() {
    let golden = golden();
    assert_eq!(golden.models.len(), 44);
    for (model, recommended) in &golden.models {
        let found = known_of_model(model).map(|known| known.id);
        // The same format, but for `true` and `null` in tool calls.
        let found = found.map(|found| if found == "qwen3_6" { "qwen3_5" } else { found });
        assert_eq!(found, Some(recommended.as_str()), "{model}");
    }
}

/// The tokenizer is not part of the repository; see `conformance/models/get-models`.
#[test]
fn real_templates_of_qwen3_fit_the_cookbook_with_the_real_tokenizer() {
    let Some(models) = tinkrs_testkit::skip::models("the tokenizer of Qwen3") else {
        return;
    };
    let folder = models.join("qwen3-tokenizer");
    if !folder.exists() {
        tinkrs_testkit::skip::say("the tokenizer of Qwen3: it is not in TINKRS_MODELS");
        return;
    }
    let golden = golden();
    let tokenizer = Arc::new(Tokenizer::from_path(folder).unwrap());
    for case in &golden.qwen3_tokenizer {
        let renderer = renderer(&case.format, &golden, Arc::clone(&tokenizer));
        let chat = &golden.conversations[&case.conversation];
        let label = format!("{}, {}", case.format, case.conversation);
        let (context, _) = chat.split_last_answer().unwrap();
        assert_eq!(
            hashed(&renderer.prompt(&context).unwrap()),
            case.prompt,
            "{label}"
        );
        for (mask, runs) in &case.masks {
            let expected = weights(runs);
            let example = renderer.example(chat, *mask).unwrap();
            let vocabulary = renderer.vocabulary();
            let example = without_last_line_break(example, expected.len(), vocabulary);
            assert_eq!(hashed(&example.tokens), case.example, "{label}");
            compare_weights(*mask, &example, &expected, vocabulary).unwrap();
        }
    }
}

#[test]
fn names_of_formats_are_unique_and_found() {
    let names: BTreeSet<&str> = KNOWN.iter().map(|known| known.id).collect();
    assert_eq!(names.len(), KNOWN.len());
    assert!(format::by_name("qwen3_5_disable_thinking").is_some());
    assert!(format::by_name("no_such_format").is_none());
}
