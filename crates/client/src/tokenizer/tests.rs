use super::*;
use serde_json::json;
use std::error::Error as _;
use std::path::Path;
use std::sync::Barrier;

/// Writes a tokenizer of two words, with a special token in front of each text.
fn write_tokenizer(folder: &Path) {
    let special = json!({"id": 3, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    let template = |id: &str, type_id: u32| {
        let start = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        json!([start, {"Sequence": {"id": id, "type_id": type_id}}])
    };
    let tokenizer = json!({
        "version": "1.0",
        // Left from its training: texts are cut after three tokens and filled up to ten.
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 10}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "hello"},
        "added_tokens": [special],
        "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": template("A", 0),
            "pair": template("B", 1),
            "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]",
            "vocab": {"hello": 0, "world": 1, "[UNK]": 2}},
    });
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

fn no_environment(_: &str) -> Option<std::ffi::OsString> {
    None
}

#[test]
fn a_tokenizer_is_loaded_once_under_64_threads() {
    const THREADS: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(&folder.path().join("moonshotai/Kimi-K2.5"));
    let cache = Cache::new(32);
    let start = Barrier::new(THREADS);
    let loaded: Vec<Arc<Tokenizer>> = std::thread::scope(|scope| {
        let load = |thread: usize| {
            // Two names of one tokenizer: the cache goes by what they lead to.
            let names = [
                "moonshotai/Kimi-K2.5:128k",
                "moonshotai/Kimi-K2.5-Text-Only",
            ];
            let source = TokenizerSource::new(names[thread % 2]).folder(folder.path());
            start.wait();
            let tokenizer = source.load_from(&cache, no_environment).unwrap();
            assert_eq!(tokenizer.encode("world").unwrap(), [3, 1]);
            tokenizer
        };
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || load(n))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        loaded
            .iter()
            .all(|tokenizer| Arc::ptr_eq(tokenizer, &loaded[0]))
    );
}

#[test]
fn the_process_shares_what_it_has_loaded_and_folders_keep_apart() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = |folder: &tempfile::TempDir| {
        let nowhere = Hub::at("http://127.0.0.1:9");
        TokenizerSource::new("my/model")
            .folder(folder.path())
            .hub(nowhere)
    };
    let missing = source(&one).load().unwrap_err();
    assert_eq!(missing.to_string(), "no tokenizer for `my/model`");

    write_tokenizer(&one.path().join("my/model"));
    write_tokenizer(&other.path().join("model"));
    let first = source(&one).load().expect("a failure is not remembered");
    assert!(Arc::ptr_eq(&first, &source(&one).load().unwrap()));
    assert!(!Arc::ptr_eq(&first, &source(&other).load().unwrap()));
}

#[test]
fn a_folder_that_is_named_wins_over_the_environment() {
    let (set, cache, named) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let var = |name: &str| match name {
        "TINKER_TOKENIZERS" => Some(set.path().into()),
        "HF_HUB_CACHE" => Some(cache.path().into()),
        "HF_HUB_OFFLINE" => Some("1".into()),
        _ => None,
    };
    let source = TokenizerSource::new("my/model");
    let load = |source: &TokenizerSource| {
        let loaded = source.load_from(&Cache::new(1), var);
        loaded.map(|tokenizer| tokenizer.path().to_owned()).ok()
    };
    assert_eq!(load(&source), None);
    let snapshot = cache.path().join("models--my--model/snapshots/main");
    for (folder, source) in [
        (snapshot, source.clone()),
        (set.path().join("my/model"), source.clone()),
        (named.path().join("model"), source.folder(named.path())),
    ] {
        write_tokenizer(&folder);
        assert_eq!(load(&source), Some(folder.join("tokenizer.json")));
    }
}

#[test]
fn an_explicit_id_wins_over_the_models_name() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(&folder.path().join("shared/tokenizer"));
    let source = TokenizerSource::new("meta-llama/Llama-3.1-8B").folder(folder.path());
    source
        .load_from(&Cache::new(1), no_environment)
        .unwrap_err();
    let source = source.tokenizer_id("shared/tokenizer");
    source.load_from(&Cache::new(1), no_environment).unwrap();
}

#[test]
fn a_missing_or_broken_tokenizer_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("broken")).unwrap();
    std::fs::write(folder.path().join("broken/tokenizer.json"), "{}").unwrap();
    let broken = TokenizerSource::new("broken").folder(folder.path());
    let broken = broken.load_from(&Cache::new(1), no_environment);
    let source = broken.unwrap_err().source().unwrap().to_string();
    assert!(
        source.ends_with("tokenizer.json cannot be read"),
        "{source}"
    );

    let nowhere = TokenizerSource::new("org/name").load_from(&Cache::new(1), no_environment);
    let source = nowhere.unwrap_err().source().unwrap().to_string();
    assert!(
        source.contains("hf download org/name --include"),
        "{source}"
    );
    assert!(source.contains("TINKER_TOKENIZERS"), "{source}");

    let vendor = TokenizerSource::new("TML/x").load_from(&Cache::new(1), no_environment);
    assert!(
        vendor
            .unwrap_err()
            .source()
            .unwrap()
            .to_string()
            .contains("tml-renderers")
    );
}
