use crate::Tokenizer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// All bytes, and a few tokens made of them.
const JOINED: [&str; 6] = ["ab", "bc", "abc", " a", "é", "12"];

fn write(folder: &Path, config: &str) {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let tokens = bytes.chain(JOINED.map(|token| token.as_bytes().to_vec()));
    let lines = tokens
        .zip(0..)
        .map(|(token, rank): (Vec<u8>, u32)| format!("{} {rank}\n", STANDARD.encode(token)));
    std::fs::write(folder.join("tiktoken.model"), lines.collect::<String>()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
}

/// Words, numbers of up to two digits, anything else.
const CONFIG: &str = r#"{"pat_str": " ?\\p{L}+|\\p{N}{1,2}|[^\\p{L}\\p{N}]",
    "added_tokens_decoder": {
        "300": {"content": "<|end|>", "special": true, "lstrip": false, "rstrip": false},
        "301": {"content": "<think>", "special": false, "lstrip": false, "rstrip": false}}}"#;

#[test]
fn the_pair_with_the_lowest_rank_is_joined_first() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), CONFIG);
    let tokenizer = Tokenizer::from_path(folder.path()).unwrap();
    let (a, b, c) = (u32::from(b'a'), u32::from(b'b'), u32::from(b'c'));
    let [ab, bc, abc, space_a, e_acute, twelve] = [256, 257, 258, 259, 260, 261];
    let cases: [(&str, &[u32]); 11] = [
        ("ab", &[ab]),
        ("abc", &[abc]),
        ("abbc", &[ab, bc]),
        ("abcb", &[abc, b]),
        ("bca", &[bc, a]),
        // `ab` has a lower rank than ` a`, and the pair of ` ` and `ab` is no token.
        (" ab", &[u32::from(b' '), ab]),
        ("a a", &[a, space_a]),
        ("123", &[twelve, u32::from(b'3')]),
        ("é", &[e_acute]),
        ("c<|end|>c", &[c, 300, c]),
        ("<think>", &[301]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(expected).unwrap(), text);
    }
    assert_eq!(
        tokenizer.decode_without_special_tokens(&[a, 300]).unwrap(),
        "a"
    );
    let bytes = tokenizer.token_bytes(302);
    let shown = [
        bytes.get(260),
        bytes.get(200),
        bytes.get(300),
        bytes.get(299),
    ];
    let expected: [&[u8]; 4] = ["é".as_bytes(), &[200], b"<|end|>", b""];
    assert_eq!(shown, expected);
}

#[test]
fn kimis_pattern_and_reserved_tokens_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]},
        "added_tokens_decoder": {"262": {"content": "[BOS]", "special": true}}}"#;
    write(folder.path(), config);
    let tokenizer = Tokenizer::from_path(folder.path()).unwrap();
    assert_eq!(tokenizer.encode("[BOS]ab").unwrap(), [262, 256]);
    assert_eq!(tokenizer.token_id("<|reserved_token_517|>"), Some(517));
    assert_eq!(tokenizer.token_id("<|reserved_token_518|>"), None);
    for text in ["漢字abc ab's 12", "ABC\n\n  x", "日本語とabc"] {
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }
    // Chinese characters are apart from letters: `bc` behind one is joined, its bytes are not.
    let tokens = tokenizer.encode("漢bc").unwrap();
    assert_eq!(tokens[3..], [257]);
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "{}");
    let error = Tokenizer::from_path(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("without its pattern is not supported"),
        "{error}"
    );
    assert!(error.contains("`pat_str`"), "{error}");
    std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
    let error = Tokenizer::from_path(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
    write(folder.path(), CONFIG);
    for broken in [
        "",
        "YQ==",
        "YQ== x",
        "!! 1",
        "YQ== -1",
        "YQ== 4294967295",
        "<!doctype html>",
    ] {
        std::fs::write(folder.path().join("tiktoken.model"), broken).unwrap();
        let error = Tokenizer::from_path(folder.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("tiktoken.model cannot be read"),
            "{broken}: {error}"
        );
    }
}

fn kimi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kimi")
}

#[test]
fn a_tokenizer_in_kimis_form_makes_the_tokens_of_tiktoken() {
    let tokenizer = Tokenizer::from_path(kimi()).unwrap();
    let golden = std::fs::read_to_string(kimi().join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    assert_eq!(tokenizer.vocab_size() as u64, golden["vocabulary"]);
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 200);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected).unwrap(), text);
    }
}

#[test]
fn a_file_that_was_cut_off_anywhere_is_noticed() {
    let whole = std::fs::read_to_string(kimi().join("tiktoken.model")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = "tokenizer_config.json";
    std::fs::copy(kimi().join(config), folder.path().join(config)).unwrap();
    let load = |text: &str| {
        std::fs::write(folder.path().join("tiktoken.model"), text).unwrap();
        let error = Tokenizer::from_path(folder.path()).err()?;
        Some(std::error::Error::source(&error)?.to_string())
    };
    assert_eq!(load(&whole), None);
    let ends: Vec<usize> = whole.match_indices('\n').map(|(at, _)| at + 1).collect();
    for at in [1, 100, 255, 256, ends.len() - 1] {
        let error = load(&whole[..ends[at - 1]]).unwrap_or_else(|| panic!("{at} lines"));
        assert!(
            error.contains("is the file cut off?"),
            "{at} lines: {error}"
        );
    }
    let error = load(&whole[..whole.len() - 4]).unwrap();
    assert!(
        error.contains("line") || error.contains("cut off"),
        "{error}"
    );
    let twice = format!("{whole}{}", &whole[..ends[0]]);
    assert!(load(&twice).unwrap().contains("two tokens have the rank 0"));
    let renamed = format!("{whole}AA== 600\n");
    assert!(load(&renamed).unwrap().contains("a token has two ranks"));
}
