//! In which numbers a model of this machine is held: said once, and remembered by the data folder.

use crate::here::Here;

fn numerics_of(here: &Here, run: &str) -> String {
    let info = here.json(&["run", "info", run]);
    info["numerics"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_run_over_quantised_weights_is_used_later_as_it_was_trained() {
    let here = Here::new().with_examples();
    let sft = ["train", "sft", "--config", "examples/configs/sft.toml"];
    let numbers = ["--quantize", "q8_0", "--kv-cache", "bf16"];
    let said = here.ok(&[&sft[..], &["--name", "small"], &numbers].concat());
    let numerics = numerics_of(&here, "small");
    assert!(
        numerics.starts_with("q8_0/int8/bf16@"),
        "{numerics}: {said:?}"
    );

    let sample = ["sample", "What is the password?", "--temperature", "0"];
    let sample = [&sample[..], &["--checkpoint", "small"]].concat();
    let output = here.command(&sample).output().unwrap();
    let (out, err) = (output.stdout, String::from_utf8(output.stderr).unwrap());
    assert!(
        err.contains("as it did in this data folder before: --quantize q8_0 --kv-cache bf16"),
        "{err}"
    );
    assert!(String::from_utf8(out).unwrap().contains("honey"));

    // What is typed comes first, and is then what is remembered. Weights that are not quantised read f32 anyway.
    let from = [
        "--from",
        "small",
        "--name",
        "exact",
        "--run-dir",
        "runs/exact",
        "--quantize",
        "stored",
        "--kv-cache",
        "f32",
    ];
    here.ok(&[&sft[..], &from].concat());
    let numerics = numerics_of(&here, "exact");
    assert!(
        !numerics.contains("q8_0") && numerics.contains("/f32@"),
        "{numerics}"
    );
}

#[test]
fn numbers_are_refused_by_name_where_somebody_else_decides_on_them() {
    let here = Here::new();
    let served = here.serve(&[]);
    let refused = |more: &[&str]| {
        let sample = ["sample", "hi", "--quantize", "q4_k"];
        let output = here
            .command(&[&sample[..], more].concat())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let elsewhere = refused(&["--base-url", &served.url]);
    assert!(
        elsewhere.contains("--quantize q4_k is for models of this machine"),
        "{elsewhere}"
    );
    let joined = refused(&["--local"]);
    assert!(
        joined.contains("has decided on the numbers of its models"),
        "{joined}"
    );
}
