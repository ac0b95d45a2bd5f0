//! The numbers of several chunks become the numbers of one pass.

use crate::support::{RealServer, datums, training};
use anyhow::Result;
use tinkrs::AdamParams;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::API_KEY;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn slack_is_max_minus_weighted_mean_and_every_other_reduction_its_own() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 3);
    // The chunks have 3 and 1 datums, and the numbers 3 and 1.
    server.edit_passes(|pass, output| {
        let count = pass.data.len() as f64;
        for name in [
            "a:mean", "a:sum", "a:min", "a:max", "a:slack", "a:hash2", "a:unique",
        ] {
            output.metrics.insert(name.to_owned(), count);
        }
        output.metrics.insert("a:unheard_of".to_owned(), count);
        if count > 1.0 {
            output.metrics.insert("only_in_one:sum".to_owned(), count);
        }
    });
    let client = training(&server).await?;
    let metrics = client.forward_backward(datums(1..=4)).await?.metrics;
    let expected = [
        ("a:mean", 2.5), // (3 · 3 + 1 · 1) / 4
        ("a:sum", 4.0),
        ("a:min", 1.0),
        ("a:max", 3.0),
        ("a:slack", 0.5), // 3 − 2.5
        ("a:hash2", 4.0),
        ("a:unique", 3.0),
        ("a:unique_1", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(metrics.get(name), Some(&value), "{name}");
    }
    assert!(!metrics.contains_key("only_in_one:sum"));
    assert!(!metrics.contains_key("a:unheard_of"));
    assert!(metrics.contains_key("loss:sum"));
    Ok(())
}

#[tokio::test]
async fn odd_names_of_a_single_chunk_are_kept() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.edit_passes(|_, output| {
        for name in ["plain", "two:colons:here"] {
            output.metrics.insert(name.to_owned(), 1.0);
        }
    });
    let client = training(&server).await?;
    let metrics = client.forward_backward(datums([1])).await?.metrics;
    assert!(metrics.contains_key("plain") && metrics.contains_key("two:colons:here"));
    Ok(())
}

/// Gets JSON that no client of ours reads.
async fn get_json(url: &str, path: &str) -> Result<serde_json::Value> {
    let host = url.strip_prefix("http://").unwrap_or(url);
    let mut stream = TcpStream::connect(host).await?;
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {API_KEY}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let start = answer.find('{').unwrap_or(0);
    let end = answer.rfind('}').map_or(0, |end| end + 1);
    Ok(serde_json::from_str(&answer[start..end])?)
}

#[tokio::test]
async fn what_a_program_reports_is_beside_what_the_server_measures() -> Result<()> {
    let server = RealServer::start().await?;
    let client = training(&server).await?;
    client.forward_backward(datums([1])).await?;
    client.optim_step(AdamParams::new(0.1)).await?;
    client
        .log_metrics(1, [("reward", 0.5), ("kl", 0.25)])
        .await?;
    client.log_metrics(1, [("reward", 0.75)]).await?;
    let path = format!("/api/v1/training_runs/{}/metrics", client.model_id());
    let found = get_json(&server.url(), &path).await?;
    let value = |name: &str| {
        let mut series = found["series"].as_array().unwrap().iter();
        let series = series.find(|series| series["name"] == name);
        series.unwrap_or_else(|| panic!("{name}: {found}"))["points"][0][1].clone()
    };
    assert_eq!(value("reward"), 0.75);
    assert_eq!(value("kl"), 0.25);
    assert!(value("loss").is_f64());
    let wrong = client
        .log_metrics(1, [("bad", f64::NAN)])
        .await
        .unwrap_err();
    assert!(wrong.to_string().contains("metrics.bad"), "{wrong}");
    let wrong = client.log_metrics(1, [("a,b", 1.0)]).await.unwrap_err();
    assert_eq!(wrong.status(), Some(400), "{wrong}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_takes_no_reports_is_asked_once() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    for step in 1..=3 {
        client.log_metrics(step, [("reward", 1.0)]).await?;
    }
    assert_eq!(server.requests_to("log_run_metrics").len(), 1);
    Ok(())
}
