//! Adapters that Hugging Face `peft` wrote, imported.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tinkrs_engine::weights::HuggingFaceFolder;

use crate::caller::{Answer, TestServer, address, base, load};
use crate::way::Way;

/// As in the engine's own comparison with PyTorch.
const TOLERANCE: f64 = 1e-5;

fn reference(name: &str) -> PathBuf {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine");
    engine.join("tests/reference").join(name)
}

/// A server of the model that the adapter was made for.
async fn serve(data: Arc<tempfile::TempDir>) -> TestServer {
    let weights = HuggingFaceFolder::open(reference("tiny-llama")).unwrap();
    TestServer::of(base(load(&weights)), data, |_| {}).await
}

pub(crate) async fn start() -> TestServer {
    serve(Arc::new(tempfile::tempdir().unwrap())).await
}

pub(crate) fn settings() -> Value {
    let text = fs::read(reference("imported-adapter/adapter_config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn tensors() -> Vec<u8> {
    fs::read(reference("imported-adapter/adapter_model.safetensors")).unwrap()
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_old();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        archive.append(&header, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

fn many_folders() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..65 {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        archive
            .append_data(&mut header, format!("folder-{number}"), &b""[..])
            .unwrap();
    }
    archive.into_inner().unwrap()
}

pub(crate) fn adapter(settings: &Value) -> Vec<u8> {
    archive(&[
        ("adapter_config.json", settings.to_string().as_bytes()),
        ("adapter_model.safetensors", &tensors()),
    ])
}

async fn import(server: &TestServer, query: &str, body: Vec<u8>) -> Answer {
    let path = format!("/import_weights?{query}");
    let headers = [("content-type", "application/x-tar")];
    server.send(Method::POST, &path, &headers, body).await
}

/// Imports the adapter, and returns where it can be trained and sampled.
async fn imported(server: &TestServer, body: Vec<u8>) -> (String, String) {
    let answer = import(server, "base_model=tiny&name=mine", body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let path = |name: &str| answer.json()[name].as_str().unwrap().to_owned();
    (path("tinker_path"), path("sampler_path"))
}

/// What PyTorch computed.
struct Expected(Value);

impl Expected {
    fn read() -> Self {
        let text = fs::read(reference("imported-adapter/expected.json")).unwrap();
        Self(serde_json::from_slice(&text).unwrap())
    }

    #[track_caller]
    fn assert_close(&self, name: &str, ours: &Value, tolerance: f64) {
        let numbers = |values: &Value| -> Vec<f64> {
            let values = values.as_array().expect("a list").iter();
            values
                .map(|value| value.as_f64().expect("a number"))
                .collect()
        };
        let (ours, theirs) = (numbers(ours), numbers(&self.0[name]));
        assert_eq!(ours.len(), theirs.len());
        let differences = ours
            .iter()
            .zip(&theirs)
            .map(|(ours, theirs)| (ours - theirs).abs());
        let largest = differences.fold(0.0, f64::max);
        assert!(largest <= tolerance, "{name}: {largest}");
    }

    fn pass(&self, model: &str, seq_id: i64) -> Value {
        let targets = &self.0["targets"];
        let weights: Vec<f64> = targets.as_array().unwrap().iter().map(|_| 1.0).collect();
        let shape = [weights.len()];
        json!({
            "forward_backward_input": {
                "data": [{
                    "model_input": {"chunks": [{"tokens": self.0["tokens"]}]},
                    "loss_fn_inputs": {
                        "target_tokens": {"data": targets, "dtype": "int64", "shape": shape},
                        "weights": {"data": weights, "dtype": "float32", "shape": shape},
                    },
                }],
                "loss_fn": "cross_entropy",
            },
            "model_id": model,
            "seq_id": seq_id,
        })
    }

    /// Log-probabilities of the sequence, from a sampler.
    async fn scored(&self, server: &TestServer, path: &str) -> Value {
        let session = server.session().await;
        let body = json!({"session_id": session, "sampling_session_seq_id": 0, "model_path": path});
        let sampler = server.ok("/create_sampling_session", body).await;
        let mut tokens = self.0["tokens"].as_array().unwrap().clone();
        tokens.extend(self.0["targets"].as_array().unwrap().last().cloned());
        let body = json!({
            "sampling_session_id": sampler["sampling_session_id"], "seq_id": 0, "num_samples": 1,
            "prompt": {"chunks": [{"tokens": tokens}]}, "sampling_params": {"max_tokens": 1},
            "prompt_logprobs": true,
        });
        let id = server.promise("/asample", body).await;
        let mut all = server.result(&id).await["prompt_logprobs"].clone();
        let first = all.as_array_mut().expect("log-probabilities").remove(0);
        assert_eq!(first, Value::Null);
        all
    }
}

async fn create_from(server: &TestServer, path: &str) -> String {
    let session = server.session().await;
    let body = json!({"session_id": session, "model_seq_id": 0, "path": path, "optimizer": true});
    let id = server.promise("/load_weights", body).await;
    let result = server.result(&id).await;
    let model = result["model_id"].as_str();
    model.unwrap_or_else(|| panic!("{result}")).to_owned()
}

async fn logprobs(server: &TestServer, body: Value) -> Value {
    let id = server.promise("/forward_backward", body).await;
    let result = server.result(&id).await;
    result["loss_fn_outputs"][0]["logprobs"]["data"].clone()
}

#[tokio::test]
async fn an_adapter_of_peft_is_what_it_is_in_pytorch_and_is_trained_exported_and_imported_again() {
    let expected = Expected::read();
    let server = start().await;
    let (state, sampler) = imported(&server, adapter(&settings())).await;
    let scored = expected.scored(&server, &sampler).await;
    expected.assert_close("logprobs", &scored, TOLERANCE);

    // It is there after a restart, and goes on in training.
    let server = serve(server.stop().await).await;
    let scored = expected.scored(&server, &sampler).await;
    expected.assert_close("logprobs", &scored, TOLERANCE);
    let model = create_from(&server, &state).await;
    for step in 0..2 {
        let before = logprobs(&server, expected.pass(&model, 2 * step + 1)).await;
        if step == 0 {
            expected.assert_close("logprobs", &before, TOLERANCE);
        }
        let adam = json!({"learning_rate": expected.0["learning_rate"]});
        let body = json!({"model_id": model, "seq_id": 2 * step + 2, "adam_params": adam});
        let id = server.promise("/optim_step", body).await;
        server.result(&id).await;
    }
    let trained = logprobs(&server, expected.pass(&model, 5)).await;
    expected.assert_close("trained", &trained, 10.0 * TOLERANCE);

    // A run that was restored from its snapshot is the same.
    let server = serve(server.stop().await).await;
    assert_eq!(logprobs(&server, expected.pass(&model, 6)).await, trained);

    let export = server
        .save("/save_weights_external", &model, 7, "out")
        .await;
    let links = format!("{}/external_weights_urls", address(&export));
    let links = server.get(&links).await["urls"].clone();
    let mut files = Vec::new();
    for (name, link) in links.as_object().unwrap() {
        let file = server.follow(link.as_str().unwrap(), &[]).await;
        assert_eq!(file.status, 200);
        files.push((name.as_str(), file.body));
    }
    let files: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (*name, &bytes[..]))
        .collect();
    let (_, again) = imported(&server, archive(&files)).await;
    let scored = expected.scored(&server, &again).await;
    expected.assert_close("trained", &scored, 10.0 * TOLERANCE);
}

#[tokio::test]
async fn an_imported_adapter_is_loaded_into_a_run_of_its_shape_and_no_other() {
    let expected = Expected::read();
    let server = start().await;
    let (state, _) = imported(&server, adapter(&settings())).await;
    let info = server
        .ok("/weights_info", json!({"tinker_path": state}))
        .await;
    assert_eq!(info["lora_rank"], 6);
    let trained = (
        &info["train_attn"],
        &info["train_mlp"],
        &info["train_unembed"],
    );
    assert_eq!(trained, (&json!(true), &json!(false), &json!(false)));
    for (mlp, fits) in [(false, true), (true, false)] {
        let session = server.session().await;
        let lora = json!({"rank": 6, "train_mlp": mlp, "train_unembed": false});
        let body = json!({
            "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": lora,
        });
        let id = server.promise("/create_model", body).await;
        let model = server.result(&id).await["model_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let body = json!({"model_id": model, "seq_id": 1, "path": state, "optimizer": false});
        let loaded = server.promise("/load_weights", body).await;
        if fits {
            assert_eq!(server.result(&loaded).await["path"], json!(state));
        } else {
            let error = server.user_error(&loaded).await;
            assert!(error.contains("rank 6, training attn;"), "{error}");
        }
        let now = logprobs(&server, expected.pass(&model, 2)).await;
        let like = if fits { "logprobs" } else { "base" };
        expected.assert_close(like, &now, TOLERANCE);
    }
}

#[tokio::test]
async fn what_cannot_be_computed_is_refused_by_name_and_leaves_nothing() {
    let server = start().await;
    let with = |name: &str, value: Value| {
        let mut settings = settings();
        settings[name] = value;
        adapter(&settings)
    };
    let config = settings().to_string();
    let both = [
        ("adapter_config.json", config.as_bytes()),
        ("adapter_model.safetensors", &tensors()[..]),
    ];
    let cut = adapter(&settings());
    let long_name =
        json!({"x".repeat(600): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}});
    let long_name = long_name.to_string();
    let length = (long_name.len() as u64).to_le_bytes();
    let long_name = [&length, long_name.as_bytes()].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (with("use_dora", json!(true)), "unsupported use_dora `true`"),
        (with("bias", json!("all")), "unsupported bias `all`"),
        (
            with("modules_to_save", json!(["lm_head"])),
            "unsupported modules_to_save",
        ),
        (
            with("rank_pattern", json!({"q_proj": 2})),
            "unsupported rank_pattern",
        ),
        (
            with("init_lora_weights", json!("pissa")),
            "unsupported init_lora_weights",
        ),
        (
            with("something_new", json!(3)),
            "unsupported something_new `3`",
        ),
        (
            with("peft_type", json!("IA3")),
            "unsupported peft_type `IA3`",
        ),
        (
            with("r", json!(4)),
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight: expected shape [4, 32], \
             got [6, 32]",
        ),
        (
            with("target_modules", json!(["q_proj", "k_proj", "v_proj"])),
            "`base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight` is missing from \
             adapter_model.safetensors",
        ),
        (
            with("target_modules", json!(["c_attn"])),
            "unsupported target_modules `c_attn`",
        ),
        (
            archive(&both[..1]),
            "`adapter_model.safetensors` is missing in the archive",
        ),
        (
            archive(&[both[0], both[0]]),
            "found `adapter_config.json` twice",
        ),
        (
            archive(&[("../adapter_config.json", b"{}")]),
            "found `../adapter_config.json` in the archive",
        ),
        (
            archive(&[("/adapter_config.json", b"{}")]),
            "found `/adapter_config.json` in the archive",
        ),
        (
            archive(&[both[0], both[1], ("weights.bin", b"x")]),
            "found `weights.bin` in the archive",
        ),
        (
            archive(&[both[0], (both[1].0, &both[1].1[..2000])]),
            "the adapter cannot be imported",
        ),
        (
            archive(&[both[0], (both[1].0, b"")]),
            "the adapter cannot be imported",
        ),
        (
            archive(&[("adapter_config.json", b"\xff"), both[1]]),
            "adapter_config.json",
        ),
        (
            archive(&[("adapter_config.json", b"[1]"), both[1]]),
            "adapter_config.json",
        ),
        (
            with("r", json!(100_000)),
            "`adapter_config.json`: found r = 100000, expected at most 1024",
        ),
        (with("lora_alpha", json!("16")), "invalid lora_alpha: found"),
        (
            archive(&[both[0], (both[1].0, &long_name)]),
            "`adapter_model.safetensors`: found a name of 600 bytes, expected at most 512",
        ),
        (many_folders(), "found more than 64 entries in the archive"),
        (cut[..cut.len() / 2].to_vec(), "cut off"),
        (b"\x1f\x8bxxxx".to_vec(), "compressed (gzip)"),
        (b"hello".to_vec(), "not an archive"),
        (
            Vec::new(),
            "`adapter_config.json` is missing in the archive",
        ),
    ];
    for (body, expected) in cases {
        let answer = import(&server, "base_model=tiny", body).await;
        let detail = answer.detail();
        assert_eq!(answer.status, 400, "{expected}: {detail}");
        assert!(detail.contains(expected), "{expected}: {detail}");
        let root = server.data().to_str().unwrap();
        assert!(!detail.contains(root), "{detail}");
    }
    for (query, expected) in [
        ("base_model=huge", "`base_model`: found `huge`"),
        ("name=a", "base_model"),
        ("base_model=tiny&name=..%2Fx", "letters, digits"),
        ("base_model=tiny&rank=4", "rank"),
    ] {
        let answer = import(&server, query, adapter(&settings())).await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.detail().contains(expected), "{}", answer.detail());
    }
    for folder in ["partial", "checkpoints"] {
        let left = fs::read_dir(server.data().join(folder)).unwrap().count();
        assert_eq!(left, 0, "{folder}");
    }
    assert_eq!(server.get("/checkpoints").await["checkpoints"], json!([]));
    assert_eq!(
        server.get("/training_runs").await["training_runs"],
        json!([])
    );
}

#[tokio::test]
async fn a_repeated_import_is_one_and_its_files_go_with_the_last_checkpoint() {
    let server = start().await;
    let send = async || {
        let headers = [("x-idempotency-key", "k")];
        let path = "/import_weights?base_model=tiny";
        let body = adapter(&settings());
        server.send(Method::POST, path, &headers, body).await.json()
    };
    // At the same moment, and later.
    let (first, second) = tokio::join!(send(), send());
    assert_eq!(first, second);
    assert_eq!(send().await, first);
    let listed = server.get("/checkpoints").await["checkpoints"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let runs = server.get("/training_runs").await["training_runs"].clone();
    assert_eq!(runs.as_array().unwrap().len(), 1, "{runs}");
    assert_eq!(runs[0]["lora_rank"], 6);
    let stranger = server.owner("tml-stranger");
    assert_eq!(stranger.get("/checkpoints").await["checkpoints"], json!([]));

    let folders = || -> usize {
        let runs = fs::read_dir(server.data().join("checkpoints")).unwrap();
        runs.map(|run| {
            fs::read_dir(run.unwrap().path().join("weights"))
                .unwrap()
                .count()
        })
        .sum()
    };
    assert_eq!(folders(), 1);
    for (name, left) in [("tinker_path", 1), ("sampler_path", 0)] {
        let path = address(first[name].as_str().unwrap());
        let deleted = server.me().call(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(deleted.status, 200);
        assert_eq!(folders(), left, "{name}");
    }
}

#[tokio::test]
async fn a_key_that_was_used_for_another_import_is_refused() {
    let server = start().await;
    let send = async |query: &str| {
        let headers = [("x-idempotency-key", "k")];
        let path = format!("/import_weights?base_model=tiny{query}");
        let body = adapter(&settings());
        server.send(Method::POST, &path, &headers, body).await
    };
    let first = send("&name=a").await;
    assert_eq!(first.status, 200);
    let other = send("&name=b").await;
    assert_eq!(other.status, 400, "{:?}", other.body);
    assert!(other.detail().contains("X-Idempotency-Key"));
    // What is gone is not said to be there, either.
    for name in ["tinker_path", "sampler_path"] {
        let path = address(first.json()[name].as_str().unwrap());
        let deleted = server.me().call(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(deleted.status, 200);
    }
    assert_eq!(send("&name=a").await.status, 400);
    assert_eq!(files(&server.data().join("checkpoints")), 0);
    assert_eq!(files(&server.data().join("partial")), 0);
}

#[tokio::test]
async fn an_import_goes_on_when_its_client_hangs_up() {
    let server = start().await;
    let local = server.local();
    let request = http::Request::post("/api/v1/import_weights?base_model=tiny")
        .header("x-api-key", crate::caller::KEY)
        .body(http_body_util::Full::from(adapter(&settings())))
        .unwrap();
    let unpacked = async {
        while files(&server.data().join("partial")) < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = unpacked => {}
        _ = local.send(request) => {}
    }
    let listed = async {
        loop {
            let listed = server.get("/checkpoints").await["checkpoints"].clone();
            if listed.as_array().unwrap().len() == 2 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let listed = tokio::time::timeout(Duration::from_secs(60), listed).await;
    listed.expect("the checkpoints are listed");
    assert_eq!(files(&server.data().join("partial")), 0);
}

#[tokio::test]
async fn what_describes_the_files_of_an_archive_is_not_read_into_memory() {
    let server = start().await;
    let config = settings().to_string();
    let both = [
        ("adapter_config.json", config.as_bytes()),
        ("adapter_model.safetensors", &tensors()[..]),
    ];
    // As Python's `tarfile` writes them, with the times of files in entries of their own.
    let mut described = tar::Builder::new(Vec::new());
    for (name, bytes) in both {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::XHeader);
        header.set_size(20);
        header.set_cksum();
        described
            .append(&header, &b"20 mtime=1700000.25\n"[..])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_path(format!("folder/{name}")).unwrap();
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        described.append(&header, bytes).unwrap();
    }
    let answer = import(&server, "base_model=tiny", described.into_inner().unwrap()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);

    let large = vec![b' '; (1 << 20) + 1];
    let answer = import(
        &server,
        "base_model=tiny",
        archive(&[(both[0].0, &large), both[1]]),
    )
    .await;
    assert_eq!(answer.status, 413, "{:?}", answer.body);
    let mut named = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    let long = format!("{}/adapter_config.json", "x".repeat(1 << 20));
    header.set_size(2);
    named.append_data(&mut header, &long, &b"{}"[..]).unwrap();
    let answer = import(&server, "base_model=tiny", named.into_inner().unwrap()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.len() < 1000, "{} bytes", answer.body.len());
}

/// Counts the files below a folder that may be changing.
fn files(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let count = entries.map(|entry| match entry.unwrap().path() {
        path if path.is_dir() => files(&path),
        _ => 1,
    });
    count.sum()
}
