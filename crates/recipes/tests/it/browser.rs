//! Reports in a real browser.

use anyhow::{Result, ensure};
use std::process::Command;
use tinkrs_recipes::report;
use tinkrs_recipes::run::{MetricsFile, Numbers, SampleRecord, write_samples};

/// `TINKRS_CHROMIUM` names the browser; a plain `cargo test` needs none.
#[test]
#[expect(clippy::print_stdout, reason = "says why nothing was tested")]
fn a_report_loads_without_a_network_and_draws_its_curves() -> Result<()> {
    let Some(browser) = std::env::var_os("TINKRS_CHROMIUM") else {
        println!("skipped: TINKRS_CHROMIUM does not name a browser");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let mut metrics = MetricsFile::open(folder.path().join("metrics.jsonl"))?;
    for step in 0..20 {
        let numbers = ["loss", "reward", "kl", "tokens_per_second"]
            .map(|name| (name.to_owned(), f64::from(step)));
        metrics.write(step as usize, &Numbers::from(numbers))?;
    }
    let hostile =
        "</td><script>console.error('forged')</script><img src=x onerror=console.error(1)>";
    let sample = |steps| SampleRecord {
        steps,
        prompt: hostile.to_owned(),
        answer: hostile.to_owned(),
        score: None,
    };
    write_samples(folder.path(), &[sample(0), sample(20)])?;
    let page = report::write(folder.path())?;

    let profile = tempfile::tempdir()?;
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg(format!("file://{}", page.display()))
        .output()?;
    let (dom, log) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{log}");
    let count = |what: &str| dom.matches(what).count();
    assert_eq!((count("<svg "), count("<polyline ")), (4, 4), "{dom}");
    assert_eq!((count("<script"), count("<img"), count("<td>")), (0, 0, 3));
    assert!(!log.contains("CONSOLE"), "{log}");
    Ok(())
}
