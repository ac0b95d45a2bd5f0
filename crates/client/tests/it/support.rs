//! What the tests share.

use tinkrs::{Datum, ServiceClient, ServiceClientBuilder, TrainingClient};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL};

/// Settings for a client of this server that takes nothing from the environment.
pub(crate) fn builder(server: &ScriptedServer) -> ServiceClientBuilder {
    ServiceClient::builder()
        .base_url(server.url())
        .api_key(API_KEY)
        .telemetry(false)
}

pub(crate) fn service(server: &ScriptedServer) -> ServiceClient {
    builder(server).build()
}

pub(crate) async fn training(server: &ScriptedServer) -> TrainingClient {
    service(server)
        .create_lora_training_client(BASE_MODEL)
        .await
        .unwrap()
}

/// A datum of one token, whose target is `target`.
pub(crate) fn datum(target: i64) -> Datum {
    Datum::supervised(vec![1_u32], [target], [1.0]).unwrap()
}

/// As many data as asked for, each with another target.
pub(crate) fn batch(count: usize) -> Vec<Datum> {
    (0..count).map(|index| datum(index as i64)).collect()
}
