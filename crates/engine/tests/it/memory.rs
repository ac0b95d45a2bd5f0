//! What a backend says that it needs is what it takes: never less, and not much more.
//!
//! Measured in a process of its own, where nothing else allocates and everything that is freed goes back to the
//! system.

use std::fs;
use std::process::Command;

use tinkrs_backend::{Backend, Need, Objective, PassProgress, PassRequest, StatePart, TrainingRun};
use tinkrs_engine::types::training::OptimizerConfig;
use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn};
use tinkrs_engine::weights::{Dtype, HuggingFaceFolder, RandomWeights, save_folder};
use tinkrs_engine::{CpuBackend, Model, ModelConfig, Precision, Threads};

/// Whether this process is the one that measures.
const MEASURES: &str = "TINKRS_TEST_MEASURES_MEMORY";
const MIB: u64 = 1 << 20;
/// What the program itself may take meanwhile: names, tables, stacks, parts of pages.
const SLACK: u64 = 6 * MIB;

#[test]
fn what_a_backend_says_that_it_needs_is_what_it_takes() {
    // Only where the system tells.
    if fs::write("/proc/self/clear_refs", "5").is_err() {
        return;
    }
    let measured = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::measures", "--nocapture"])
        .env(MEASURES, "1")
        // Whatever is freed goes back to the system at once.
        .env("MALLOC_MMAP_THRESHOLD_", "32768")
        .env("MALLOC_TRIM_THRESHOLD_", "32768")
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&measured.stdout);
    let errors = String::from_utf8_lossy(&measured.stderr);
    assert!(measured.status.success(), "{output}\n{errors}");
}

fn in_status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap().trim_end_matches("kB").trim();
    number.parse::<u64>().unwrap() << 10
}

/// Does something, and returns how much more memory is used afterwards, and how much was at the most.
fn measure<R>(work: impl FnOnce() -> R) -> (R, u64, u64) {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = in_status("VmRSS:");
    let result = work();
    let (after, most) = (in_status("VmRSS:"), in_status("VmHWM:"));
    let more = |bytes: u64| bytes.saturating_sub(before);
    (result, more(after), more(most))
}

#[track_caller]
fn check(what: &str, needed: u64, taken: u64) {
    let (needed_mib, taken_mib) = (needed / MIB, taken / MIB);
    println!("{what}: {needed_mib} MiB needed, {taken_mib} MiB taken");
    assert!(
        taken <= needed + SLACK,
        "{what}: {taken_mib} MiB taken, {needed_mib} MiB needed"
    );
    assert!(
        needed <= 2 * taken + SLACK,
        "{what}: {needed_mib} MiB needed for no more than {taken_mib} MiB"
    );
}

fn pass(run: &mut dyn TrainingRun, data: &[Datum], backward: bool) {
    let mut pass = run
        .begin(PassRequest {
            data: data.to_vec(),
            objective: Objective::BuiltIn(LossFn::CrossEntropy),
            backward,
        })
        .unwrap();
    while pass.advance(1024).unwrap() == PassProgress::Continue {}
}

/// The embedding is half of this model, and is mapped while it is packed.
fn loading_a_folder_takes_little_more_than_the_weights(threads: &Threads) {
    let config = ModelConfig {
        vocab: 65_536,
        hidden: 256,
        ffn: 2048,
        layers: 12,
        ..ModelConfig::tiny_llama()
    };
    let folder = tempfile::tempdir().unwrap();
    let random = RandomWeights::new(config, 3, Dtype::Bf16).unwrap();
    save_folder(&random, folder.path()).unwrap();
    let weights = HuggingFaceFolder::open(folder.path()).unwrap();
    let (model, taken, most) =
        measure(|| Model::load(&weights, Precision::Stored, threads).unwrap());
    let packed = model.size_bytes() as u64;
    println!(
        "a folder of {} MiB: {} MiB at the most, {} MiB afterwards",
        packed / MIB,
        most / MIB,
        taken / MIB
    );
    assert!(
        most <= packed + 2 * SLACK,
        "{} MiB for weights of {} MiB",
        most / MIB,
        packed / MIB
    );
}

/// Not a test by itself: measures, in a process of its own.
#[test]
fn measures() {
    if std::env::var_os(MEASURES).is_none() {
        return;
    }
    let config = ModelConfig {
        vocab: 4096,
        hidden: 384,
        ffn: 1024,
        layers: 6,
        max_context: 1024,
        ..ModelConfig::tiny_llama()
    };
    let weights = RandomWeights::new(config, 3, Dtype::F32).unwrap();
    let threads = Threads::new(2).unwrap();
    let (model, taken, _) = measure(|| Model::load(&weights, Precision::Stored, &threads).unwrap());
    let backend = CpuBackend::new(model);
    check("weights", backend.memory(&Need::Weights), taken);
    loading_a_folder_takes_little_more_than_the_weights(&threads);

    for precision in [Precision::Q8_0, Precision::Q4K] {
        let (model, taken, _) = measure(|| Model::load(&weights, precision, &threads).unwrap());
        let planned = CpuBackend::weight_bytes(&weights, precision.into()).unwrap();
        let backend = CpuBackend::new(model);
        assert_eq!(backend.memory(&Need::Weights), planned, "{precision:?}");
        check(&format!("weights in {precision:?}"), planned, taken);
    }

    let lora = || LoraConfig {
        seed: Some(1),
        ..LoraConfig::new(384)
    };
    let tokens: Vec<u32> = (0..256).collect();
    let datum = Datum::from_prompt_completion(&tokens[..1], &tokens[1..]).unwrap();
    let data = vec![datum; 4];
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");

    // With its gradients and moments, which the first pass and the first step make.
    let (mut run, taken, _) = measure(|| {
        let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
        pass(&mut *run, &data[..1], true);
        run.optim_step(&AdamParams::new(1e-4).into()).unwrap();
        pass(&mut *run, &data[..1], true);
        backend.trim();
        run
    });
    let needed = backend.memory(&Need::Run { lora: lora() });
    check("a run", needed, taken);
    let copies = backend.memory(&Need::Copies { lora: lora() });

    for backward in [true, false] {
        let slice = Need::Slice {
            lora: lora(),
            tokens: 1024,
            longest: 256,
            backward,
        };
        let sums = if backward {
            backend.memory(&Need::Pass { lora: lora() })
        } else {
            0
        };
        let ((), _, most) = measure(|| pass(&mut *run, &data, backward));
        let name = format!("a pass, backward: {backward}");
        check(&name, backend.memory(&slice) + sums, most);
        backend.trim();
    }
    let limits = [
        (
            "a step",
            measure(|| drop(run.optim_step(&AdamParams::new(1e-4).into()).unwrap())).2,
        ),
        (
            "writing the state",
            measure(|| run.save_state(&state).unwrap()).2,
        ),
        (
            "writing the adapter",
            measure(|| run.save_adapter(folder.path(), "base").unwrap()).2,
        ),
    ];
    for (name, most) in limits {
        println!("{name}: {} MiB", most / MIB);
        assert!(
            most <= copies + SLACK,
            "{name} copies {} MiB of {}",
            most / MIB,
            copies / MIB
        );
    }
    pass(&mut *run, &data, true);
    backend.trim();
    run.save_state(&state).unwrap();
    let (held, _, most) = measure(|| {
        let state = run.state();
        run.optim_step(&AdamParams::new(1e-4).into()).unwrap();
        state
    });
    drop(held);
    let needed = backend.memory(&Need::State { lora: lora() }) + copies;
    assert!(
        most <= needed + SLACK,
        "a state and a step: {} MiB",
        most / MIB
    );
    drop(run);

    let (restored, taken, most) =
        measure(|| backend.restore(&state, StatePart::Everything).unwrap());
    let needed = backend.memory(&Need::Run { lora: lora() });
    check("a restored run", needed, taken);
    assert!(
        most <= needed + copies + SLACK,
        "restoring: {} MiB",
        most / MIB
    );
    drop(restored);

    let (adapter, taken, most) = measure(|| backend.load_adapter(folder.path()).unwrap());
    let needed = backend.memory(&Need::Adapter { lora: lora() });
    check("an adapter", needed, taken);
    // What a server sets aside while it loads one.
    assert!(
        most <= 2 * needed + SLACK,
        "loading an adapter: {} MiB",
        most / MIB
    );
    drop(adapter);
}
