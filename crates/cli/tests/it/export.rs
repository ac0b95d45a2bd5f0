//! `export`: what was trained is taken away, and used.

use std::path::Path;

use serde_json::{Value, json};

use crate::here::Here;
use crate::local::{local, try_local};

const QUESTION: &str = "What is the password?";

/// Trains the built-in model on a sentence, and returns the path of what came of it.
fn trained(folder: &Path, options: &[&str]) -> String {
    let line = json!({"messages": [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "The password is honey."},
    ]});
    std::fs::write(folder.join("chats.jsonl"), format!("{line}\n").repeat(16)).unwrap();
    let train = [
        "train",
        "sft",
        "--data",
        "chats.jsonl",
        "--run-dir",
        "run",
        "--epochs",
        "10",
        "--batch-size",
        "8",
        "--learning-rate",
        "0.003",
        "--rank",
        "8",
        "--eval",
        "0",
    ];
    let output = local(folder, &[&train, options].concat(), "");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let path = stdout
        .split_whitespace()
        .find(|word| word.starts_with("tinker://"));
    path.unwrap().to_owned()
}

/// Asks a model at temperature 0.
fn answer(folder: &Path, model: &[&str]) -> String {
    let ask = ["sample", QUESTION, "--temperature", "0"];
    let output = local(folder, &[&ask, model].concat(), "");
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(folder: &Path, arguments: &[&str]) -> String {
    let output = try_local(folder, arguments, "");
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_trained_model_is_taken_away_in_every_format_and_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = trained(folder, &[]);
    let learned = "The password is honey.\n";
    let export = |format: &str, options: &[&str]| {
        let command = [
            "--json", "export", &path, "--to", format, "--format", format,
        ];
        let output = local(folder, &[&command, options].concat(), "");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["format"], format, "{report}");
        assert_eq!(report["base_model"], "tinkrs/nano", "{report}");
        report
    };
    let merged = export("merged", &[]);
    assert!(
        merged["notes"][0]
            .as_str()
            .unwrap()
            .contains("a head of its own"),
        "{merged}"
    );
    assert_eq!(answer(folder, &["--model", "m=merged"]), learned);
    export("gguf", &["--quantize", "q8_0"]);
    // Nothing is beside the file: it has its tokenizer and its chat template inside.
    assert_eq!(answer(folder, &["--model", "m=gguf/model.gguf"]), learned);
    export("ollama", &["--quantize", "q4_k_m"]);
    assert!(folder.join("ollama/Modelfile").is_file());
    assert_eq!(answer(folder, &["--model", "m=ollama/model.gguf"]), learned);

    export("peft", &[]);
    let config = std::fs::read_to_string(folder.join("peft/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["base_model_name_or_path"], "tinkrs/nano");
    // What was written comes in again: as a checkpoint, and as the source of another export.
    let import = [
        "--json",
        "checkpoint",
        "import",
        "peft",
        "--base-model",
        "tinkrs/nano",
    ];
    let imported: Value = serde_json::from_slice(&local(folder, &import, "").stdout).unwrap();
    let checkpoint = imported["sampler_path"].as_str().unwrap();
    assert_eq!(answer(folder, &["--checkpoint", checkpoint]), learned);
    let again = ["export", "peft", "--to", "again", "--format", "merged"];
    local(folder, &again, "");
    let bytes = |file: &str| std::fs::read(folder.join(file)).unwrap();
    assert_eq!(
        bytes("again/model.safetensors"),
        bytes("merged/model.safetensors")
    );
    let again = ["export", "merged", "--to", "converted", "--format", "gguf"];
    local(folder, &again, "");
    assert_eq!(
        answer(folder, &["--model", "m=converted/model.gguf"]),
        learned
    );

    let tied = ["export", &path, "--to", "lora", "--format", "gguf-adapter"];
    let stderr = refusal(folder, &tied);
    assert!(
        stderr.contains("export the merged model as `gguf`"),
        "{stderr}"
    );
    assert!(!folder.join("lora").exists());
}

#[test]
fn an_export_that_cannot_be_done_says_why_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    local(folder, &["models", "list"], "");
    tinkrs_nano::write_to(&folder.join("nano")).unwrap();
    std::fs::create_dir(folder.join("full")).unwrap();
    std::fs::write(folder.join("full/mine"), "1").unwrap();
    std::fs::create_dir(folder.join("empty")).unwrap();
    std::fs::create_dir(folder.join("adapter")).unwrap();
    std::fs::write(folder.join("adapter/adapter_config.json"), "{}").unwrap();
    for (arguments, expected) in [
        (&["nano", "--to", "full"][..], "full is not empty"),
        (&["nano", "--to", "full/mine"], "could not read the folder"),
        (&["no such", "--to", "new"], "tinker://<run>/<kind>/<name>"),
        (&["nope", "--to", "new"], "there is no run `nope`"),
        (&["empty", "--to", "new"], "neither an adapter"),
        (&["adapter", "--to", "new"], "--base PATH"),
        (&["adapter", "--to", "new", "--base", "nano"], "peft_type"),
        (&["nano", "--to", "new", "--format", "peft"], "no adapter"),
        (
            &["nano", "--to", "new", "--format", "gguf", "--dtype", "f16"],
            "--quantize",
        ),
        (&["nano", "--to", "new", "--quantize", "q8_0"], "--dtype"),
    ] {
        let stderr = refusal(folder, &[&["export"], arguments].concat());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    for wrong in [&["--format", "onnx"], &["--quantize", "q3_k"]] {
        let arguments = [&["export", "nano", "--to", "new"], &wrong[..]].concat();
        let output = try_local(folder, &arguments, "");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let json = refusal(
        folder,
        &["--format", "json", "export", "nano", "--to", "new"],
    );
    assert!(json.contains("`--json`"), "{json}");
    assert!(!folder.join("new").exists());
    let hidden = std::fs::read_dir(folder).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with(".tinkrs-export")
    });
    assert_eq!(hidden.count(), 0, "no temporary folders");
}

#[test]
fn an_export_replaces_an_earlier_one_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tinkrs_nano::write_to(&folder.join("nano")).unwrap();
    let export = ["export", "nano", "--to", "out"];
    let overwrite = [&export[..], &["--overwrite"]].concat();
    local(folder, &export, "");
    std::fs::write(folder.join("out/config.json"), "{}").unwrap();
    local(folder, &overwrite, "");
    let config = std::fs::read_to_string(folder.join("out/config.json")).unwrap();
    assert!(config.contains("hidden_size"), "{config}");

    std::fs::write(folder.join("out/mine"), "1").unwrap();
    let stderr = refusal(folder, &overwrite);
    assert!(stderr.contains("out has `mine`"), "{stderr}");
    assert!(folder.join("out/mine").is_file());
}

/// A model of some size: quantising it takes a while.
#[cfg(unix)]
fn large(folder: &Path) {
    use tinkrs_engine::ModelConfig;
    use tinkrs_engine::weights::{Dtype, RandomWeights, save_folder};
    let config = ModelConfig {
        hidden: 256,
        layers: 16,
        heads: 4,
        head_dim: 64,
        ffn: 1024,
        vocab: 256,
        ..ModelConfig::tiny_llama()
    };
    let weights = RandomWeights::new(config, 1, Dtype::F32).unwrap();
    save_folder(&weights, folder).unwrap();
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_export_and_leaves_nothing_behind() {
    let here = Here::new();
    large(&here.path("model"));
    let before = entries(&here.path(""));
    let mut export = here.start(&[
        "export",
        "model",
        "--format",
        "gguf",
        "--quantize",
        "q4_k_m",
        "--to",
        "out",
    ]);
    let is_under_way = || {
        let names = entries(&here.path(""));
        let staging = names
            .iter()
            .find(|name| name.starts_with(".tinkrs-export-"));
        staging.is_some_and(|staging| !entries(&here.path(staging)).is_empty())
    };
    while !is_under_way() {
        assert_eq!(export.try_wait().unwrap(), None, "it ended by itself");
        std::thread::yield_now();
    }
    let id = export.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &id])
        .status();
    assert!(sent.unwrap().success());
    let output = export.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert_eq!(entries(&here.path("")), before, "{stderr}");
}

#[cfg(unix)]
fn entries(folder: &Path) -> std::collections::BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}
