//! Which tokenizer belongs to a model.

use super::TokenizerError;

/// A tokenizer on the hub: its id, and its revision if one is pinned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resolved {
    pub(crate) id: String,
    pub(crate) revision: Option<&'static str>,
}

/// Finds the tokenizer of a model, which may have stated one itself.
///
/// # Errors
/// If only the vendor's own package has it.
pub(crate) fn resolve(
    model_name: &str,
    tokenizer_id: Option<&str>,
) -> Result<Resolved, TokenizerError> {
    let id = match tokenizer_id {
        Some(id) => before_colon(id),
        None => id_of_model(before_colon(model_name)),
    };
    if VENDOR_PREFIXES.iter().any(|prefix| id.starts_with(prefix)) {
        return Err(TokenizerError::Vendor { id: id.to_owned() });
    }
    let pinned = PINNED.iter().find(|(name, ..)| *name == id);
    let (id, revision) = match pinned {
        Some((_, id, revision)) => (*id, Some(*revision)),
        None => (id, None),
    };
    let id = id.to_owned();
    Ok(Resolved { id, revision })
}

const VENDOR_PREFIXES: [&str; 2] = ["TML/", "thinkingmachines/"];

/// The tokenizer that all Llama 3 models share, from a place that needs no permission.
const LLAMA_3: &str = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer";

/// Tokenizers of which one revision is known to work: name, id to load, revision.
const PINNED: [(&str, &str, &str); 5] = [
    (
        "moonshotai/Kimi-K2-Thinking",
        "moonshotai/Kimi-K2-Thinking",
        "612681931a8c906ddb349f8ad0f582cb552189cd",
    ),
    (
        "moonshotai/Kimi-K2.5",
        "moonshotai/Kimi-K2.5",
        "4d01dfe0332d63057c186e0b262165819efb6611",
    ),
    (
        "moonshotai/Kimi-K2.5-Text-Only",
        "moonshotai/Kimi-K2.5",
        "4d01dfe0332d63057c186e0b262165819efb6611",
    ),
    (
        "moonshotai/Kimi-K2.6",
        "moonshotai/Kimi-K2.6",
        "b5aabbfb20227ed42becbf5541dbffd213942c58",
    ),
    (
        "moonshotai/Kimi-K3",
        "moonshotai/Kimi-K3",
        "f831ab66814297da540d832a5235f8e904f29d06",
    ),
];

/// Models are named `org/model`, and variants of one model `org/model/variant`.
fn id_of_model(name: &str) -> &str {
    if name.starts_with("meta-llama/Llama-3") {
        return LLAMA_3;
    }
    match name
        .match_indices('/')
        .map(|(at, _)| at)
        .collect::<Vec<_>>()[..]
    {
        [_, second] => &name[..second],
        _ => name,
    }
}

/// Cuts off what stands behind the first colon: the size of a context, for one.
fn before_colon(name: &str) -> &str {
    name.split_once(':').map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_leads_to_its_tokenizer() {
        let k2_5 = Some("4d01dfe0332d63057c186e0b262165819efb6611");
        let k3 = Some("f831ab66814297da540d832a5235f8e904f29d06");
        // (model, stated tokenizer, id, revision)
        let cases = [
            ("Qwen/Qwen3-8B", None, "Qwen/Qwen3-8B", None),
            ("Qwen/Qwen3-8B:peft:131072", None, "Qwen/Qwen3-8B", None),
            ("Qwen/Qwen3-8B/variant", None, "Qwen/Qwen3-8B", None),
            ("a/b/c/d", None, "a/b/c/d", None),
            ("gpt2", None, "gpt2", None),
            ("meta-llama/Llama-3.1-8B", None, LLAMA_3, None),
            ("meta-llama/Llama-3.2-1B/x", None, LLAMA_3, None),
            ("meta-llama/Llama-2-7b", None, "meta-llama/Llama-2-7b", None),
            ("meta-llama/Llama-3.1-8B", Some("my/own"), "my/own", None),
            ("any", Some("my/own/variant"), "my/own/variant", None),
            ("any", Some("my/own:8k"), "my/own", None),
            (
                "moonshotai/Kimi-K2.5-Text-Only",
                None,
                "moonshotai/Kimi-K2.5",
                k2_5,
            ),
            (
                "moonshotai/Kimi-K2.5:128k",
                None,
                "moonshotai/Kimi-K2.5",
                k2_5,
            ),
            ("moonshotai/Kimi-K3/fast", None, "moonshotai/Kimi-K3", k3),
            ("any", Some("moonshotai/Kimi-K3"), "moonshotai/Kimi-K3", k3),
            ("moonshotai/Kimi-K9", None, "moonshotai/Kimi-K9", None),
        ];
        for (model, stated, id, revision) in cases {
            let id = id.to_owned();
            let expected = Resolved { id, revision };
            assert_eq!(
                resolve(model, stated).unwrap(),
                expected,
                "{model} {stated:?}"
            );
        }
    }

    #[test]
    fn the_vendors_own_models_come_with_advice() {
        let cases = [
            ("TML/inkling", None),
            ("thinkingmachines/x:8k", None),
            ("any", Some("TML/x")),
        ];
        for (model, stated) in cases {
            let error = resolve(model, stated).unwrap_err().to_string();
            assert!(error.contains("tml-renderers"), "{model}: {error}");
        }
        resolve("TMLX/model", None).unwrap();
    }
}
