//! What a test needs and may not have: real models, a browser.
//!
//! A test without them passes, and says so on the process's own stderr: `cargo test` shows that, while
//! it keeps what `println!` of a passing test writes to itself.

use std::io::Write;
use std::path::PathBuf;

/// Returns the folder of real models that `TINKRS_MODELS` names, or says that `test` skips them.
pub fn models(test: &str) -> Option<PathBuf> {
    from_variable(
        "TINKRS_MODELS",
        "a folder that conformance/models/get-models filled",
        test,
    )
}

/// Returns the browser that `TINKRS_CHROMIUM` names, or says that `test` skips it.
pub fn browser(test: &str) -> Option<PathBuf> {
    from_variable("TINKRS_CHROMIUM", "a Chromium", test)
}

fn from_variable(variable: &str, what: &str, test: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).filter(|value| !value.is_empty());
    if found.is_none() {
        say(&format!("{test}: set {variable} to {what}"));
    }
    found.map(PathBuf::from)
}

/// Says what is skipped.
pub fn say(what: &str) {
    // One write, so that lines of tests that run at once stay whole. A closed stderr is no reason to
    // fail.
    let _ = std::io::stderr().write_all(format!("skipped: {what}\n").as_bytes());
}
