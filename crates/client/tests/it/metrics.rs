//! The numbers of several chunks become the numbers of one pass.

use crate::support::{datums, training};
use anyhow::Result;
use tinkrs_testkit::ScriptedServer;

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
