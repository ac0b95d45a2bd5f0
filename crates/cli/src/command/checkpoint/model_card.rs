//! The README of an adapter on the Hub.

use tinkrs::TinkerPath;
use tinkrs::rest::WeightsInfo;

/// Writes the README of a checkpoint. Its front matter is what the Hub reads.
pub(super) fn card(
    path: &TinkerPath,
    base_model: Option<&str>,
    info: Option<&WeightsInfo>,
) -> String {
    let mut text = String::from("---\n");
    if let Some(base) = base_model {
        text.push_str(&format!("base_model: {base}\n"));
    }
    text.push_str("library_name: peft\ntags:\n- tinker\n- peft\n- lora\n");
    if let Some(base) = base_model {
        text.push_str(&format!("- base_model:adapter:{base}\n"));
    }
    text.push_str(&format!(
        "tinker_path: {path}\n---\n\n# Tinker LoRA adapter\n\n"
    ));
    text.push_str(&format!("Trained with Tinker and saved as `{path}`.\n"));
    if let Some(info) = info {
        text.push('\n');
        if let Some(rank) = info.lora_rank {
            text.push_str(&format!("- LoRA rank: {rank}\n"));
        }
        let parts = [
            ("attention", info.train_attn),
            ("MLP", info.train_mlp),
            ("unembedding", info.train_unembed),
        ];
        let trained = parts.iter().filter(|(_, trained)| trained.unwrap_or(true));
        let trained: Vec<_> = trained.map(|(name, _)| *name).collect();
        text.push_str(&format!("- Trained modules: {}\n", trained.join(", ")));
    }
    text
}

/// Returns the checkpoint that a README names.
pub(super) fn named_path(readme: &str) -> Option<String> {
    let start = readme.find("tinker://")?;
    let is_end = |c: char| c.is_whitespace() || matches!(c, '`' | '"' | '\'' | ')' | '>' | ',');
    let path = readme[start..].split(is_end).next()?;
    Some(path.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_the_adapter_is_and_where_it_is_from() {
        let path: TinkerPath = "tinker://s:train:0/weights/a".parse().unwrap();
        let info: WeightsInfo = serde_json::from_value(serde_json::json!({
            "base_model": "org/base", "is_lora": true, "lora_rank": 8, "train_mlp": false,
        }))
        .unwrap();
        let text = card(&path, Some("org/base"), Some(&info));
        for part in [
            "base_model: org/base\n",
            "- base_model:adapter:org/base\n",
            "- LoRA rank: 8\n",
            "- Trained modules: attention, unembedding\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(named_path(&text), Some(path.to_string()));
        assert_eq!(named_path(&card(&path, None, None)), Some(path.to_string()));
        assert_eq!(named_path("# Something else"), None);
    }
}
