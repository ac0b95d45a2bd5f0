//! Reports in a real browser, without a network. `TINKRS_CHROMIUM` names it; a plain `cargo test` needs
//! none.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use tinkrs_recipes::report;
use tinkrs_recipes::run::{MetricsFile, Numbers, SampleRecord, write_samples};

/// What is on a page before its own script makes the charts live, as the browser has laid it out. This
/// is added to a copy, and leaves what it finds in the document.
const PROBE: &str = r#"<script>
const shown = element => {
  const box = element.getBoundingClientRect(), style = getComputedStyle(element);
  return box.width > 0 && box.height > 0 && style.visibility === "visible" && style.opacity === "1";
};
const curve = line => {
  const chart = line.ownerSVGElement.getBoundingClientRect(), box = line.getBoundingClientRect();
  return {
    length: line.getTotalLength(), points: line.points.numberOfItems,
    shown: shown(line.ownerSVGElement) && getComputedStyle(line).stroke !== "none" && box.width > 0,
    inside: box.left >= chart.left && box.right <= chart.right && box.top >= chart.top
      && box.bottom <= chart.bottom,
  };
};
const rows = [...document.querySelectorAll("tr")].slice(1).map(row =>
  [...row.children].map(cell => shown(cell) ? cell.innerText : ""));
const found = {
  curves: [...document.querySelectorAll("polyline")].map(curve), rows,
  // Ours: the numbers, what draws them, and this.
  foreign: document.querySelectorAll("script, img, iframe, link").length - 3,
};
const note = document.createElement("pre");
note.id = "probe";
note.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
document.body.append(note);
</script>"#;

#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    pub(crate) curves: Vec<Curve>,
    /// The cells of the table of samples, as they can be read.
    pub(crate) rows: Vec<Vec<String>>,
    /// How many elements could load or run something.
    foreign: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Curve {
    /// In the units of the chart.
    length: f64,
    points: usize,
    shown: bool,
    inside: bool,
}

/// Opens a page, and checks what holds for every report. `None` if there is no browser.
pub(crate) fn open(page: &Path) -> Option<Page> {
    let browser = tinkrs_testkit::skip::browser("reports in a browser")?;
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("report.html");
    let html = std::fs::read_to_string(page).unwrap();
    std::fs::write(&copy, html.replace("</body>", &format!("{PROBE}</body>"))).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .args(["--window-size=1280,1600", "--no-first-run"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        // No name can be resolved: whatever is loaded from elsewhere fails, and says so.
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg(format!("file://{}", copy.display()))
        .output()
        .unwrap();
    let (dom, log) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{log}");
    // The browser logs what a page says, errors and refused requests, in lines with this word.
    assert!(!log.contains("CONSOLE"), "{log}");
    let probe = dom
        .split_once("<pre id=\"probe\">")
        .expect("the probe ran")
        .1;
    let probe = probe.split_once('<').unwrap().0;
    let probe = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, probe).unwrap();
    let page: Page = serde_json::from_slice(&probe).unwrap();
    assert_eq!(page.foreign, 0, "{page:?}");
    assert!(!page.curves.is_empty(), "{page:?}");
    for curve in &page.curves {
        assert!(curve.points > 1 && curve.length > 100.0, "{curve:?}");
        assert!(curve.shown && curve.inside, "{curve:?}");
    }
    Some(page)
}

#[test]
fn a_report_draws_its_curves_and_nothing_that_a_sample_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut metrics = MetricsFile::open(folder.path().join("metrics.jsonl")).unwrap();
    for step in 0..20 {
        let numbers = ["loss", "reward", "kl", "tokens_per_second"]
            .map(|name| (name.to_owned(), f64::from(step)));
        metrics
            .write(step as usize, &Numbers::from(numbers))
            .unwrap();
    }
    let hostile =
        "</td><script>console.error('forged')</script><img src=x onerror=console.error(1)>";
    let sample = |steps| SampleRecord {
        steps,
        prompt: hostile.to_owned(),
        answer: format!("{hostile} after {steps}"),
        score: None,
    };
    write_samples(folder.path(), &[sample(0), sample(20)]).unwrap();
    let Some(page) = open(&report::write(folder.path()).unwrap()) else {
        return;
    };
    assert_eq!(page.curves.len(), 4);
    let said = |steps| format!("{hostile} after {steps}");
    assert_eq!(page.rows, [[hostile.to_owned(), said(0), said(20)]]);
}
