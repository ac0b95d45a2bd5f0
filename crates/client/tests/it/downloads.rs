//! Downloading external weights.

use crate::support::{RealServer, datums, service, training};
use anyhow::Result;
use serde_json::json;
use tinkrs::{AdamParams, TinkerPath};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{Reply, status};

async fn saved(server: &RealServer) -> Result<TinkerPath> {
    let client = training(server).await?;
    client.forward_backward(datums([5])).await?;
    client.optim_step(AdamParams::new(0.1)).await?;
    Ok(client.save_weights_external("final").await?.path)
}

#[tokio::test]
async fn files_arrive_whole_and_without_the_key() -> Result<()> {
    let server = RealServer::start().await?;
    let path = saved(&server).await?;
    let folder = tempfile::tempdir()?;
    let rest = service(&server).create_rest_client();
    let downloaded = rest.download_checkpoint(path, folder.path()).await?;
    assert_eq!(downloaded.files.len(), 2);
    for (name, size) in downloaded.files {
        let file = std::fs::metadata(folder.path().join(&name))?;
        assert_eq!(file.len(), size, "{name}");
    }
    let files = server.requests_to("file");
    assert_eq!(files.len(), 2);
    for request in files {
        assert_eq!(request.key(), None);
    }
    Ok(())
}

#[tokio::test]
async fn a_download_that_breaks_off_goes_on_where_it_was() -> Result<()> {
    let server = RealServer::start().await?;
    let path = saved(&server).await?;
    let rest = service(&server).create_rest_client();
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    rest.download_checkpoint(path.clone(), folders[0].path())
        .await?;
    let soon = status(503).header("retry-after-ms", "1");
    server.on("file").times(2).truncate(20);
    server.on("file").reply(soon);
    rest.download_checkpoint(path, folders[1].path()).await?;
    let files = std::fs::read_dir(folders[0].path())?;
    for file in files {
        let name = file?.file_name();
        let [whole, parts] = [0, 1].map(|folder| std::fs::read(folders[folder].path().join(&name)));
        assert_eq!(whole?, parts?, "{name:?}");
    }
    let files = server.requests_to("file");
    let range = files.last().unwrap().header("range");
    assert_eq!(range, Some("bytes=20-"));
    Ok(())
}

#[tokio::test]
async fn no_name_of_a_file_leads_out_of_the_folder() -> Result<()> {
    for name in ["../evil", "/etc/evil", "a/../../evil"] {
        let server = ScriptedServer::start().await;
        let path: TinkerPath = "tinker://r:train:0/external_weights/x".parse()?;
        let urls = json!({"urls": {name: format!("{}/files/x", server.url())}, "expires": "2999-01-01T00:00:00Z"});
        server
            .on("get_external_weights_urls")
            .always()
            .reply(Reply::json(&urls));
        server.on("file").always().reply(Reply::message("x"));
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
