//! A local server with a tiny random model, and clients of it.

use std::path::Path;
use tinkrs::{ServiceClient, Tokenizer};
use tinkrs_chat::Renderer;
use tinkrs_chat::format::ChatMl;
use tinkrs_engine::weights::{Dtype, RandomWeights};
use tinkrs_engine::{CpuBackend, Model, ModelConfig, Precision, Threads};
use tinkrs_server::{BaseModel, LocalServer, Settings};

pub(crate) const MODEL: &str = "tiny";

/// A server that stops when it is dropped.
pub(crate) struct TestServer {
    server: LocalServer,
    _data: tempfile::TempDir,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::with_context(512).await
    }

    /// Starts a server whose model takes so many tokens.
    pub(crate) async fn with_context(max_context: usize) -> Self {
        let config = ModelConfig {
            vocab: 416, // our small tokenizer has 406
            max_context,
            ..ModelConfig::tiny_llama()
        };
        let weights = RandomWeights::new(config, 1, Dtype::F32).unwrap();
        let threads = Threads::new(1).unwrap();
        let model = Model::load(&weights, Precision::Stored, &threads).unwrap();
        let data = tempfile::tempdir().unwrap();
        let base = BaseModel::new(MODEL, CpuBackend::new(model));
        let settings = Settings::new(data.path());
        let server = LocalServer::start(vec![base], settings).await.unwrap();
        Self {
            server,
            _data: data,
        }
    }

    pub(crate) fn service(&self) -> ServiceClient {
        ServiceClient::builder()
            .base_url(self.server.url())
            .api_key("tml-test")
            .telemetry(false)
            .build()
    }
}

pub(crate) fn renderer() -> Renderer {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chat/tests/data");
    Renderer::new(
        Tokenizer::from_path(data.join("tokenizer.json")).unwrap(),
        ChatMl,
    )
    .unwrap()
}
