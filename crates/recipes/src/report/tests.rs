use super::*;
use crate::run::{MetricsFile, write_samples};

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut metrics = MetricsFile::open(folder.path().join("metrics.jsonl")).unwrap();
    for step in 0..5_usize {
        let x = step as f64;
        let numbers = [
            ("loss", 3.0 - x / 2.0),
            ("tokens", 100.0),
            ("reward", x),
            ("kl", 1e-5 * x),
        ];
        let numbers = numbers.map(|(name, number)| (name.to_owned(), number));
        metrics.write(step, &Numbers::from(numbers)).unwrap();
    }
    let eval = Numbers::from([("eval_loss".to_owned(), 2.5)]);
    metrics.write(5, &eval).unwrap();
    let sample = |steps, answer: &str| SampleRecord {
        steps,
        prompt: "<script>alert('x')</script> & \"more\"".to_owned(),
        answer: answer.to_owned(),
        score: None,
    };
    let samples = [sample(0, "before \u{0}<b>"), sample(5, "after </td>")];
    write_samples(folder.path(), &samples).unwrap();
    std::fs::write(
        folder.path().join("config.json"),
        "{\"base_model\": \"<tiny>\"}\n",
    )
    .unwrap();
    let next = ["tinkrs chat --checkpoint a".to_owned(), "<b>".to_owned()];
    write_next(folder.path(), &next).unwrap();
    folder
}

/// Leaves out what scripts and the style say: that is ours.
fn without_scripts(html: &str) -> String {
    let mut rest = html.to_owned();
    for name in ["script", "style"] {
        let mut kept = String::new();
        let opening = format!("<{name}");
        let mut parts = rest.split(&opening);
        kept.push_str(parts.next().unwrap());
        for part in parts {
            let (inside, after) = part.split_once(&format!("</{name}>")).expect("it ends");
            let attributes = inside.split_once('>').unwrap().0;
            kept.push_str(&format!("<{name}{attributes}></{name}>{after}"));
        }
        rest = kept;
    }
    rest
}

/// Checks that every element is closed in order, and returns the elements' names.
fn elements(html: &str) -> Vec<String> {
    let html = &without_scripts(html);
    let (mut open, mut all): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("every `<` has its `>`");
        let inside = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = inside.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        assert_eq!(
            inside.matches('"').count() % 2,
            0,
            "quotes in pairs: {inside}"
        );
        let name = inside.split([' ', '/']).next().unwrap();
        all.push(name.to_owned());
        if name != "meta" {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    all
}

#[test]
fn a_report_is_well_formed_and_has_its_curves() {
    let folder = folder();
    let path = write(folder.path()).unwrap();
    let html = std::fs::read_to_string(path).unwrap();
    let elements = elements(&html);
    let count = |name: &str| elements.iter().filter(|element| *element == name).count();
    assert_eq!(count("svg"), 3, "loss, reward and KL");
    assert_eq!(count("polyline"), 4, "eval loss shares the chart of loss");
    assert_eq!(
        count("tr"),
        4,
        "an evaluation and a sample, each below its headings"
    );
    assert!(html.contains("5 steps, 500 tokens"));
    assert!(
        !without_scripts(&html).contains("NaN"),
        "the script may say it"
    );
}

#[test]
fn a_report_stands_by_itself_and_shows_text_as_text() {
    let html = render(folder().path()).unwrap();
    let scripts = elements(&html)
        .iter()
        .filter(|name| *name == "script")
        .count();
    assert_eq!(scripts, 2, "the numbers, and what draws them");
    let (numbers, _) = html.split_once("<script type=\"module\">").unwrap();
    let (_, numbers) = numbers.split_once("id=\"report-data\"").unwrap();
    assert_eq!(numbers.matches('<').count(), 1, "the end of the element");
    for outside in ["http:", "https:", "url(", "@import", "src=", "href="] {
        assert!(!without_scripts(&html).contains(outside), "{outside}");
    }
    for outside in ["url(", "@import", "http:", "https:"] {
        assert!(!assets::STYLE.contains(outside), "{outside}");
    }
    assert!(html.contains("&lt;script&gt;alert('x')&lt;/script&gt; &amp; &quot;more&quot;"));
    assert!(html.contains("before \u{FFFD}&lt;b&gt;") && html.contains("after &lt;/td&gt;"));
    assert!(html.contains("&quot;&lt;tiny&gt;&quot;"));
}

#[test]
fn a_report_depends_on_the_folder_alone() {
    let folder = folder();
    assert_eq!(
        render(folder.path()).unwrap(),
        render(folder.path()).unwrap()
    );
    let empty = tempfile::tempdir().unwrap();
    assert!(render(empty.path()).is_err(), "no metrics");
}

#[test]
fn runs_are_compared_in_charts_of_each_number() {
    let (one, other) = (folder(), folder());
    let to = one.path().join("compared.html");
    let folders = [one.path(), other.path()];
    let page = std::fs::read_to_string(write_comparison(&folders, &to).unwrap()).unwrap();
    let elements = elements(&page);
    let count = |name: &str| elements.iter().filter(|element| *element == name).count();
    assert_eq!((count("svg"), count("polyline")), (5, 10), "{elements:?}");
    let error = write_comparison(&[] as &[&Path], &to)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "`run folders`: found 0, expected from 1 to 8");
}
