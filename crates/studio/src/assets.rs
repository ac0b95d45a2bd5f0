//! The files that pages load: a style sheet, modules, an icon.
//!
//! Their names carry a hash of all of them, so that a browser may keep them for ever and never has two versions in one
//! page. Modules import each other by the plain name; that is replaced here.

use std::borrow::Cow;
use std::io::Write;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A file that pages load.
#[derive(Debug)]
pub struct Asset {
    /// Its name below `/assets/`.
    pub name: String,
    /// Its type.
    pub content_type: &'static str,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// The same, compressed with gzip.
    pub gzip: Vec<u8>,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../assets/", $name)))),*]
    };
}

/// The files by the names that they have here.
const FILES: &[(&str, &str)] = files![
    "api.js",
    "chart.js",
    "checkpoints.js",
    "curves.js",
    "data.js",
    "dom.js",
    "icon.svg",
    "live.js",
    "page.js",
    "playground.js",
    "report.js",
    "run.js",
    "run_words.js",
    "runs.js",
    "server.js",
    "shell.js",
    "stream.js",
    "studio.css",
    "theme.js",
    "timeline.js",
    "tokens.js",
];

/// The style sheet, for a page that stands by itself.
pub const STYLE: &str = include_str!("../assets/studio.css");

static ASSETS: LazyLock<Vec<Asset>> =
    LazyLock::new(|| FILES.iter().map(|file| make(*file)).collect());

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let all = FILES
        .iter()
        .flat_map(|(name, text)| [*name, "\0", *text, "\0"]);
    format!("{:016x}", fnv1a(all.flat_map(str::bytes)))
});

/// Returns all files.
pub fn all() -> &'static [Asset] {
    &ASSETS
}

/// Finds a file by its name below `/assets/`.
pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

/// Returns the path of a file by the name that it has in this crate, such as `runs.js`.
///
/// # Panics
/// If there is no such file, which is a mistake in a template.
pub fn path(name: &str) -> String {
    assert!(
        FILES.iter().any(|(known, _)| *known == name),
        "no asset `{name}`"
    );
    format!("/assets/{}", versioned(name))
}

/// Returns the paths of all modules that a module imports, directly or not, so that a page can name them at once
/// instead of having its browser find them one level after the other.
///
/// # Panics
/// If there is no such module, which is a mistake in a template.
pub fn imported_by(name: &str) -> Vec<String> {
    let mut found = vec![name];
    let mut next = 0;
    while let Some(name) = found.get(next) {
        for line in text(name)
            .lines()
            .filter(|line| line.starts_with("import "))
        {
            let import = line.split("\"./").nth(1);
            let import = import.and_then(|rest| rest.split('"').next());
            found.extend(import.filter(|import| !found.contains(import)));
        }
        next += 1;
    }
    found[1..].iter().map(|name| path(name)).collect()
}

fn text(name: &str) -> &'static str {
    let found = FILES.iter().find(|(known, _)| *known == name);
    found.expect("a file of this crate").1
}

/// Returns modules as one script that imports nothing, for a page that stands by itself. Each is given after those
/// that it imports.
///
/// # Panics
/// If there is no such module.
pub fn bundle(names: &[&str]) -> String {
    let mut script = String::new();
    for name in names {
        for line in text(name)
            .lines()
            .filter(|line| !line.starts_with("import "))
        {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

fn versioned(name: &str) -> String {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    format!("{stem}-{}.{ending}", *VERSION)
}

fn make((name, text): (&'static str, &'static str)) -> Asset {
    let (content_type, text) = match name.rsplit_once('.') {
        Some((_, "css")) => ("text/css; charset=utf-8", Cow::Borrowed(text)),
        Some((_, "svg")) => ("image/svg+xml", Cow::Borrowed(text)),
        _ => (
            "text/javascript; charset=utf-8",
            Cow::Owned(with_versions(text)),
        ),
    };
    let bytes = text.into_owned().into_bytes();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let gzip = encoder.write_all(&bytes).and_then(|()| encoder.finish());
    Asset {
        name: versioned(name),
        content_type,
        bytes,
        gzip: gzip.expect("memory can be written to"),
    }
}

/// Replaces the names of modules that are imported.
fn with_versions(text: &str) -> String {
    let mut text = text.to_owned();
    for (name, _) in FILES {
        text = text.replace(
            &format!("\"./{name}\""),
            &format!("\"./{}\"", versioned(name)),
        );
    }
    text
}

/// A hash that needs no crate: names only have to differ when the content does.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_assets_together_are_small() {
        let total: usize = all().iter().map(|asset| asset.gzip.len()).sum();
        assert!(total < 200 * 1024, "{total} bytes compressed");
    }

    #[test]
    fn every_import_is_of_an_asset_that_is_there() {
        for asset in all().iter().filter(|asset| asset.name.ends_with(".js")) {
            let text = std::str::from_utf8(&asset.bytes).unwrap();
            for import in text.lines().filter(|line| line.starts_with("import ")) {
                let name = import.split('"').nth(1).expect("a quoted name");
                let name = name.strip_prefix("./").expect("a module of ours");
                assert!(find(name).is_some(), "{}: {import}", asset.name);
            }
        }
    }

    #[test]
    fn what_a_module_imports_is_known_however_deep() {
        let imported = imported_by("run.js");
        for name in ["curves.js", "chart.js", "dom.js", "tokens.js"] {
            let times = imported.iter().filter(|it| **it == path(name)).count();
            assert_eq!(times, 1, "{name} in {imported:?}");
        }
        assert!(!imported.contains(&path("run.js")));
        assert!(imported_by("theme.js").is_empty());
    }

    #[test]
    fn modules_make_no_markup_and_run_no_text() {
        for (name, text) in FILES.iter().filter(|(name, _)| name.ends_with(".js")) {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ] {
                assert!(!text.contains(forbidden), "{name}: {forbidden}");
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let mut found: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        let known: Vec<_> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(found, known);
    }

    #[test]
    fn a_bundle_imports_and_exports_nothing() {
        let script = bundle(&["dom.js", "chart.js", "report.js"]);
        let is_left = |line: &&str| line.starts_with("import ") || line.starts_with("export ");
        assert_eq!(script.lines().find(is_left), None);
        assert!(!script.contains("</script"), "it ends where it ends");
    }
}
