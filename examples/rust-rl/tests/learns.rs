//! The program learns, on a server in this process.

use std::sync::{Arc, Mutex};

use tinkrs::ServiceClient;
use tinkrs_chat::Tokenizer;
use tinkrs_engine::weights::HuggingFaceFolder;
use tinkrs_engine::{CpuBackend, Model, Precision, Threads};
use tinkrs_server::{BaseModel, LocalServer, Settings};

/// A server with the model that comes with Tinkrs. It ends when it is dropped.
async fn server(folder: &std::path::Path) -> anyhow::Result<LocalServer> {
    let model = folder.join("nano");
    tinkrs_nano::write_to(&model)?;
    let weights = HuggingFaceFolder::open(&model)?;
    let backend = CpuBackend::new(Model::load(&weights, Precision::Stored, &Threads::new(2)?)?);
    let base = BaseModel {
        tokenizer_id: Some(model.display().to_string()),
        tokenizer: Some(Arc::new(Tokenizer::from_path(&model)?)),
        ..BaseModel::new(tinkrs_nano::NAME, backend)
    };
    Ok(LocalServer::start(vec![base], Settings::new(folder.join("data"))).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_learns_to_look_before_it_answers() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let server = server(folder.path()).await?;
    let service = ServiceClient::builder()
        .base_url(server.url())
        .api_key("tml-test")
        .build();
    let renderer = box_rl::renderer(&service, tinkrs_nano::NAME).await?;
    let runs = folder.path().join("runs");
    let habits =
        box_rl::learn_habits(&service, tinkrs_nano::NAME, &renderer, &runs.join("habits")).await?;

    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&steps);
    let rl = runs.join("rl");
    box_rl::learn_to_look(
        &service,
        tinkrs_nano::NAME,
        &renderer,
        &habits,
        &rl,
        move |report| {
            let numbers = &report.numbers;
            seen.lock()
                .unwrap()
                .push((numbers["reward"], numbers["env/tool_calls"]));
        },
    )
    .await?;

    let steps = steps.lock().unwrap();
    let (first, last) = (steps[0], steps[steps.len() - 1]);
    assert!(
        last.0 > first.0 + 0.15 && last.0 > 0.8,
        "rewards: {steps:?}"
    );
    assert!(last.1 > first.1, "looks: {steps:?}");
    assert!(rl.join("report.html").exists());
    Ok(())
}
