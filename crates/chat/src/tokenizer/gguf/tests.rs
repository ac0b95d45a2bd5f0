//! Tokenizers inside GGUF files against the `tokenizer.json` that they were made from.

use crate::testing::GgufWriter;
use crate::{Conversation, Message, Renderer, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};

const TEXTS: [&str; 9] = [
    "The quick brown fox jumps over 12345 lazy dogs.",
    "  indented\n\n\ttabs and   spaces  \r\n",
    "it's WE'LL i'd don't, e\u{301} and é",
    "日本語のテキスト 漢字 and 🦀👩‍👩‍👧",
    "fn main() { println!(\"{}\", 1_000.5e-3); } // comment",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <think>",
    "<s>a</s> b<unk>",
    " ",
    "",
];

/// Returns the pairs that a tokenizer joins, in their order.
fn merges(json: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    merges
        .map(|merge| match merge {
            Value::String(merge) => {
                let (left, right) = merge.split_once(' ').unwrap();
                (left.to_owned(), right.to_owned())
            }
            pair => (text(&pair[0]), text(&pair[1])),
        })
        .collect()
}

/// Writes a byte-level tokenizer as converters write it.
fn byte_level(json: &Value, pre: &str) -> GgufWriter {
    let merges: Vec<String> = merges(json)
        .iter()
        .map(|(left, right)| format!("{left} {right}"))
        .collect();
    vocabulary(json, "gpt2", |_| 1)
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.merges", &merges)
}

/// Writes a SentencePiece tokenizer: pieces that are joined first have the best scores.
fn sentence_piece(json: &Value) -> GgufWriter {
    let kind = |piece: &str| if piece.starts_with("<0x") { 6 } else { 1 };
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut scores = vec![-1e9; vocab.len()];
    for (place, (left, right)) in merges(json).iter().enumerate().rev() {
        let id = vocab[&format!("{left}{right}")].as_u64().unwrap();
        scores[usize::try_from(id).unwrap()] = -(place as f32);
    }
    vocabulary(json, "llama", kind)
        .floats("tokenizer.ggml.scores", &scores)
        .integer("tokenizer.ggml.bos_token_id", 1)
        .integer("tokenizer.ggml.eos_token_id", 2)
}

fn vocabulary(json: &Value, model: &str, kind: impl Fn(&str) -> i32) -> GgufWriter {
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let id = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let last = vocab
        .values()
        .map(id)
        .chain(added.iter().map(|token| id(&token["id"])))
        .max();
    // Room behind the last token, as models have it.
    let size = last.unwrap() + 10;
    let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![5; size];
    for (piece, value) in vocab {
        tokens[id(value)] = piece.clone();
        types[id(value)] = kind(piece);
    }
    for token in added {
        let content = token["content"].as_str().unwrap();
        tokens[id(&token["id"])] = content.to_owned();
        types[id(&token["id"])] = match (token["special"].as_bool().unwrap(), content) {
            (true, "<unk>") => 2,
            (true, _) => 3,
            (false, _) => 4,
        };
    }
    let scored = if model == "llama" { vocab.len() } else { size };
    GgufWriter::default()
        .text("tokenizer.ggml.model", model)
        .texts("tokenizer.ggml.tokens", &tokens[..scored])
        .integers("tokenizer.ggml.token_type", &types[..scored])
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Compares two tokenizers on texts, in both directions, and on the bytes of their tokens.
fn assert_same(name: &str, theirs: &Tokenizer, ours: &Tokenizer, texts: &[&str]) {
    for text in texts {
        let expected = theirs.encode(text).unwrap();
        assert_eq!(ours.encode(text).unwrap(), expected, "{name}: {text:?}");
        let plain = theirs.encode_without_special_tokens(text).unwrap();
        assert_eq!(ours.encode_without_special_tokens(text).unwrap(), plain);
        assert_eq!(
            ours.decode(&expected).unwrap(),
            theirs.decode(&expected).unwrap()
        );
        assert_eq!(
            ours.decode_without_special_tokens(&expected).unwrap(),
            theirs.decode_without_special_tokens(&expected).unwrap()
        );
    }
    let size = theirs.vocab_size() + 20;
    assert_eq!(ours.token_bytes(size), theirs.token_bytes(size), "{name}");
}

fn nano() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../nano/model")
}

#[test]
fn a_byte_level_tokenizer_is_the_same_inside_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    byte_level(&read(&nano().join("tokenizer.json")), "gpt-2").write(&path);
    let theirs = Tokenizer::from_path(nano()).unwrap();
    let ours = Tokenizer::from_path(&path).unwrap();
    assert_same("nano", &theirs, &ours, &TEXTS);
    let readme = include_str!("../../../README.md");
    assert_same("nano", &theirs, &ours, &[readme]);
}

#[test]
fn a_gguf_file_is_copied_as_a_folder_with_the_same_tokens_and_conversations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let template =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}";
    byte_level(&read(&nano().join("tokenizer.json")), "gpt-2")
        .text("tokenizer.chat_template", template)
        .integer("tokenizer.ggml.eos_token_id", 2)
        .write(&path);
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    let theirs = Tokenizer::from_path(&path).unwrap();
    for (name, text) in theirs.text_files().unwrap() {
        std::fs::write(copy.join(name), text).unwrap();
    }
    let ours = Tokenizer::from_path(&copy).unwrap();
    assert_same("copy", &theirs, &ours, &TEXTS);
    let chat = Conversation::from([Message::user("hello")]);
    let rendered = |path: &Path| Renderer::from_path(path).unwrap().prompt(&chat).unwrap();
    assert_eq!(rendered(&copy), rendered(&path));
}

#[test]
fn a_sentence_piece_tokenizer_is_the_same_inside_a_gguf_file() {
    let json = r#"{"version": "1.0", "pre_tokenizer": null,
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false},
            {"id": 1, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false},
            {"id": 2, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "<0xC3>": 4, "<0xA9>": 5,
                "▁a": 6, "▁ab": 7, "bc": 8, "abc": 9, "▁": 10, "a": 11, "b": 12, "c": 13},
            "merges": [["▁", "a"], ["▁a", "b"], ["b", "c"], ["a", "bc"]]}}"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let path = folder.path().join("model.gguf");
    let json: Value = serde_json::from_str(json).unwrap();
    sentence_piece(&json).write(&path);
    let theirs = Tokenizer::from_path(folder.path()).unwrap();
    let ours = Tokenizer::from_path(&path).unwrap();
    let texts = ["a", "abc", "abc abc", "é\n", "a<s>b", "cab  ba", "x", ""];
    assert_same("pieces", &theirs, &ours, &texts);
    assert_eq!(
        ours.encode("abc").unwrap(),
        [1, 7, 13],
        "the best score first"
    );

    sentence_piece(&json)
        .flag("tokenizer.ggml.add_space_prefix", false)
        .flag("tokenizer.ggml.add_bos_token", false)
        .write(&path);
    let bare = Tokenizer::from_path(&path).unwrap();
    assert_eq!(bare.encode("abc").unwrap(), [9]);
    assert_eq!(bare.decode(&[9]).unwrap(), "abc");
}

/// Other people's tokenizers are not part of the repository.
#[test]
#[expect(clippy::print_stdout, reason = "says why nothing was compared")]
fn real_tokenizers_are_the_same_inside_gguf_files() {
    let Some(models) = std::env::var_os("TINKRS_MODELS").map(PathBuf::from) else {
        println!("skipped: TINKRS_MODELS does not name a folder of models");
        return;
    };
    let kinds = [
        ("MiniMind2-Small", Some("gpt-2")),
        ("SmolLM2-135M-Instruct", Some("smollm")),
        ("qwen3-tokenizer", Some("qwen2")),
        ("stories15M", None),
    ];
    let readme = include_str!("../../../README.md");
    let source = include_str!("tests.rs");
    for (name, pre) in kinds {
        if !models.join(name).exists() {
            println!("skipped: there is no {name}");
            continue;
        }
        let json = read(&models.join(name).join("tokenizer.json"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        match pre {
            Some(pre) => byte_level(&json, pre).write(&path),
            None => sentence_piece(&json).write(&path),
        }
        let theirs = Tokenizer::from_path(models.join(name)).unwrap();
        let ours = Tokenizer::from_path(&path).unwrap();
        assert_same(name, &theirs, &ours, &TEXTS);
        assert_same(name, &theirs, &ours, &[readme, source]);
    }
}

#[test]
fn the_chat_template_comes_with_the_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let config = read(&nano().join("tokenizer_config.json"));
    let template = config["chat_template"].as_str().unwrap();
    byte_level(&read(&nano().join("tokenizer.json")), "gpt-2")
        .text("tokenizer.chat_template", template)
        .integer("tokenizer.ggml.eos_token_id", 2)
        .write(&path);
    let chat = Conversation::from([Message::user("hi"), Message::assistant("hello")]);
    let theirs = Renderer::from_path(nano()).unwrap();
    let ours = Renderer::from_path(&path).unwrap();
    assert_eq!(
        ours.render(&chat, true).unwrap(),
        theirs.render(&chat, true).unwrap()
    );
    assert_eq!(ours.stop(), theirs.stop());
}

#[test]
fn what_is_not_supported_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let error = |writer: GgufWriter| {
        writer.write(&path);
        Tokenizer::from_path(&path).unwrap_err().to_string()
    };
    let json = read(&nano().join("tokenizer.json"));
    let unknown = error(byte_level(&json, "quantum"));
    assert!(
        unknown.contains("the pre-tokenizer `quantum` is not supported"),
        "{unknown}"
    );
    let bert = error(GgufWriter::default().text("tokenizer.ggml.model", "bert"));
    assert!(bert.contains("kind `bert` is not supported"), "{bert}");
    let none = error(GgufWriter::default());
    assert!(none.contains("without a tokenizer"), "{none}");
    let empty = GgufWriter::default().text("tokenizer.ggml.model", "llama");
    assert!(error(empty).ends_with("model.gguf cannot be read"));
    std::fs::write(&path, "not a GGUF file").unwrap();
    Tokenizer::from_path(&path).unwrap_err();
    Tokenizer::from_path(folder.path().join("absent.gguf")).unwrap_err();
}

/// Writes a tokenizer into a GGUF file without tensors.
fn embedded(tokenizer: &Tokenizer, size: usize, path: &Path) {
    let mut contents = tinkrs_gguf::Contents::default();
    let begin = tokenizer.write_gguf(size, &mut contents).unwrap();
    if let Some(begin) = begin {
        contents.u32("tokenizer.ggml.bos_token_id", begin);
    }
    let file = std::fs::File::create(path).unwrap();
    contents.start(file).unwrap().finish().unwrap();
}

#[test]
fn a_tokenizer_that_is_written_into_a_gguf_file_is_the_same_in_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let nano = Tokenizer::from_path(nano()).unwrap();
    embedded(&nano, nano.vocab_size() + 3, &path);
    assert_same("nano", &nano, &Tokenizer::from_path(&path).unwrap(), &TEXTS);
    // And once more: what was read can be written.
    let again = folder.path().join("again.gguf");
    let read = Tokenizer::from_path(&path).unwrap();
    embedded(&read, nano.vocab_size() + 3, &again);
    let again = Tokenizer::from_path(&again).unwrap();
    assert_same("nano twice", &nano, &again, &TEXTS);

    let spacing = crate::testing::spacing_tokenizer();
    embedded(&spacing, spacing.vocab_size(), &path);
    let read = Tokenizer::from_path(&path).unwrap();
    assert_same("spacing", &spacing, &read, &["a b", "ab x", "b"]);
}

#[test]
fn a_tokenizer_that_does_not_fit_the_model_or_the_format_is_refused() {
    let nano = Tokenizer::from_path(nano()).unwrap();
    let size = nano.vocab_size();
    let mut contents = tinkrs_gguf::Contents::default();
    let error = nano.write_gguf(size - 1, &mut contents).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("outside the model's"), "{cause}");
    let words = crate::testing::tokenizer_of(
        r#"{"version": "1.0", "normalizer": null, "decoder": null, "post_processor": null,
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}}"#,
    );
    let error = words.write_gguf(9, &mut contents).unwrap_err().to_string();
    assert!(
        error.contains("WordLevel") && error.contains("supported"),
        "{error}"
    );
}

/// On the tokenizers of real models, where they are.
#[test]
fn the_tokenizers_of_real_models_are_the_same_in_a_gguf_file() {
    let Some(models) = std::env::var_os("TINKRS_MODELS").map(PathBuf::from) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "stories15M",
        "MiniMind2-Small",
        "SmolLM2-135M-Instruct",
        "qwen3-tokenizer",
    ] {
        let theirs = Tokenizer::from_path(models.join(name)).unwrap();
        let path = folder.path().join("model.gguf");
        embedded(&theirs, theirs.vocab_size(), &path);
        let ours = Tokenizer::from_path(&path).unwrap();
        let readme = include_str!("../../../README.md");
        assert_same(name, &theirs, &ours, &TEXTS);
        assert_same(name, &theirs, &ours, &[readme]);
    }
}
