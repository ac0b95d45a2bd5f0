//! Downloading external weights.

use crate::support::{service, training};
use anyhow::Result;
use bytes::Bytes;
use tinkrs::TinkerPath;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{ManualClock, status};

async fn saved(server: &ScriptedServer) -> Result<TinkerPath> {
    Ok(training(server)
        .await?
        .save_weights_external("final")
        .await?
        .path)
}

#[tokio::test]
async fn files_arrive_whole_and_without_the_key() -> Result<()> {
    let server = ScriptedServer::start().await;
    let path = saved(&server).await?;
    let folder = tempfile::tempdir()?;
    let rest = service(&server).create_rest_client();
    rest.download_checkpoint(path, folder.path()).await?;
    let weights = std::fs::read(folder.path().join("adapter_model.safetensors"))?;
    let config = std::fs::read(folder.path().join("adapter_config.json"))?;
    assert_eq!(weights.len() + config.len(), 100_000);
    let start = config.len();
    assert!(
        weights
            .iter()
            .enumerate()
            .all(|(i, byte)| *byte == ((i + start) % 251) as u8)
    );
    for request in server.requests_to("file") {
        assert_eq!(request.key(), None);
    }
    Ok(())
}

#[tokio::test]
async fn a_download_that_breaks_off_goes_on_where_it_was() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let path = saved(&server).await?;
    let content: Bytes = (0..50_000_u32)
        .map(|i| (i % 13) as u8)
        .collect::<Vec<_>>()
        .into();
    server.put_files(&path, [("weights.bin", content.clone())]);
    server.on("file").truncate(20_000);
    server.on("file").reset();
    server.on("file").reply(status(503));
    let folder = tempfile::tempdir()?;
    let rest = service(&server).create_rest_client();
    let download = rest.download_checkpoint(path, folder.path());
    clock.advance_until(download.into_future()).await?;
    assert_eq!(std::fs::read(folder.path().join("weights.bin"))?, content);
    let files = server.requests_to("file");
    let range = files.last().unwrap().header("range").unwrap_or_default();
    assert!(
        range.starts_with("bytes=") && range != "bytes=0-",
        "{range}"
    );
    Ok(())
}

#[tokio::test]
async fn no_name_of_a_file_leads_out_of_the_folder() -> Result<()> {
    for name in ["../evil", "/etc/evil", "a/../../evil"] {
        let server = ScriptedServer::start().await;
        let path = saved(&server).await?;
        server.put_files(&path, [(name, Bytes::from_static(b"x"))]);
        let outer = tempfile::tempdir()?;
        let folder = outer.path().join("inner");
        let rest = service(&server).create_rest_client();
        let error = rest.download_checkpoint(path, &folder).await.unwrap_err();
        assert!(
            matches!(error, tinkrs::Error::Download(_)),
            "{name}: {error}"
        );
        assert!(!outer.path().join("evil").exists());
    }
    Ok(())
}
