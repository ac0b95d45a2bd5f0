//! Files that `pyarrow` and `datasets` have written: `tests/data/make.py` made them.

use std::path::{Path, PathBuf};
use tinkrs_recipes::data::{Layout, Record, Rows, read_jsonl, read_numbered};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn chats() -> Vec<Record> {
    let chat = |n: usize| {
        let text = format!(
            r#"{{"messages": [{{"role": "user", "content": "What is {n} + 1?"}},
                {{"role": "assistant", "content": "{}"}}]}}"#,
            n + 1
        );
        serde_json::from_str(&text).unwrap()
    };
    (0..5).map(chat).collect()
}

#[test]
fn chats_are_the_same_in_every_file_that_has_them() {
    let names = [
        "chats-none.parquet",
        "chats-snappy.parquet",
        "chats-gzip.parquet",
        "chats-zstd.parquet",
        "saved",
        "splits",
        "splits/train",
        "hub",
    ];
    for name in names {
        let read: Vec<Record> = read_jsonl(fixture(name)).unwrap();
        assert_eq!(read, chats(), "{name}");
    }
    let one: Vec<Record> = read_jsonl(fixture("splits/test")).unwrap();
    assert_eq!(one, chats()[..1]);
}

#[test]
fn what_was_found_is_said() {
    let said = |name| Rows::open(fixture(name)).unwrap().to_string();
    assert_eq!(said("chats-zstd.parquet"), "Parquet, chats (`messages`)");
    assert_eq!(
        said("saved"),
        "a Hugging Face dataset on disk: 2 files, Arrow, chats (`messages`)"
    );
    assert_eq!(
        said("hub"),
        "a folder of files: 2 files, Parquet, chats (`messages`)"
    );
    let arrow = Rows::open(fixture("pairs.arrow")).unwrap();
    assert_eq!(arrow.layout(), Layout::Arrow);
}

#[test]
fn members_that_are_null_are_not_there_and_other_columns_do_no_harm() {
    let calls: Vec<Record> = read_jsonl(fixture("calls.parquet")).unwrap();
    let Record::Chat(first) = &calls[0] else {
        panic!("{calls:?}")
    };
    assert_eq!(first.messages[1].tool_calls[0].name, "weather");
    assert!(first.messages[0].tool_calls.is_empty());
    for name in ["pairs.parquet", "pairs.arrow"] {
        let rows: Vec<serde_json::Value> = read_jsonl(fixture(name)).unwrap();
        let expected = serde_json::json!([
            {"prompt": "a", "completion": "x", "when": 0, "scores": [0.5, 1.0]},
            {"prompt": "b", "completion": "y", "when": 1, "scores": []},
            {"prompt": "c", "completion": "z", "when": 2},
        ]);
        assert_eq!(serde_json::Value::from(rows), expected, "{name}");
    }
}

#[test]
fn a_row_that_is_no_record_is_named_with_its_file_and_row() {
    // The answer is wanted from a table that has none.
    let error = read_numbered::<tinkrs_recipes::dpo::Preference>(fixture("hub")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("train-00000-of-00002.parquet, row 1: "),
        "{error}"
    );
    assert!(error.contains("missing field `chosen`"), "{error}");
}

#[test]
fn a_damaged_file_is_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "pairs.parquet",
        "pairs.arrow",
        "saved/data-00000-of-00002.arrow",
    ] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let path = folder.path().join("damaged.bin");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            // It may well be readable; what counts is that it returns.
            Rows::open(&path).map(|rows| rows.map(|row| row.is_ok()).collect::<Vec<_>>())
        };
        for length in (8..whole.len()).step_by(37) {
            let cut = read(&whole[..length]);
            let failed = cut.is_err() || cut.is_ok_and(|rows| rows.contains(&false));
            // An Arrow file is whole once all of its batches are there, whatever follows them.
            let may_be_whole = !name.ends_with("parquet") && length > whole.len() / 2;
            assert!(failed || may_be_whole, "{name}, {length} bytes");
        }
        for place in (0..whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[place] ^= 0xff;
            let _ = read(&bytes);
        }
    }
}
