//! What a run may cost, what is hosted, and what training sees of a file.

use crate::here::Here;

const PRICES: &str = "date = \"2026-01-31\"\ncurrency = \"USD\"\n[models.\"tinkrs/nano\"]\n\
    prefill = 1000.0\nsample = 1000.0\ntrain = 1000.0\n";

fn chats() -> Here {
    let here = Here::new();
    let chat = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    here.write("chats.jsonl", &format!("{chat}\n").repeat(8));
    here.write("prices.toml", PRICES);
    here
}

const TRAIN: [&str; 14] = [
    "train",
    "sft",
    "--local",
    "--data",
    "chats.jsonl",
    "--run-dir",
    "run",
    "--eval",
    "0",
    "--batch-size",
    "1",
    "--prices",
    "prices.toml",
    "--max-cost",
];

#[test]
fn a_budget_stops_a_run_at_a_checkpoint_and_more_continues_it() {
    let here = chats();
    let shown = here.json(&["data", "show", "chats.jsonl", "--count", "1"]);
    let tokens = shown[0]["tokens"].as_array().unwrap().len();
    // At a dollar for a thousand tokens: enough for about four of the eight steps.
    let budget = format!("{}", tokens as f64 * 4.5 / 1000.0);
    let train = [&TRAIN[..], &[budget.as_str()]].concat();
    let output = here.command(&train).output().unwrap();
    let stopped = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stopped}");
    assert!(
        stopped.contains("a higher `--max-cost` continues"),
        "{stopped}"
    );
    assert!(stopped.contains("stopped after"), "{stopped}");
    let cost = std::fs::read_to_string(here.path("run/cost.json")).unwrap();
    let cost: serde_json::Value = serde_json::from_str(&cost).unwrap();
    let spent = cost["amount"].as_f64().unwrap();
    assert!(
        spent > 0.0 && spent <= budget.parse::<f64>().unwrap(),
        "{cost}"
    );
    let report = std::fs::read_to_string(here.path("run/report.html")).unwrap();
    assert!(report.contains("USD at the prices of 2026-01-31"));

    let result = here.json(&[&TRAIN[..], &["100"]].concat());
    assert_eq!(
        (&result["finished"], &result["steps"]),
        (&true.into(), &8.into())
    );
    assert!(result["cost"]["amount"].as_f64().unwrap() > spent);
}

#[test]
fn a_budget_for_nothing_is_refused_before_anything_is_done() {
    let here = chats();
    for (budget, problem) in [
        ("0", "expected a number above 0"),
        ("0.000001", "too little"),
    ] {
        let error = here.refused(&[&TRAIN[..], &[budget]].concat());
        assert!(error.contains(problem), "{error}");
        assert!(!here.path("run/metrics.jsonl").exists());
    }
}

#[test]
fn hosted_models_are_listed_with_formats_and_prices() {
    let here = Here::new();
    let list = here.json(&["models", "hosted"]);
    let models = list["models"].as_array().unwrap();
    assert!(models.len() >= 44, "{}", models.len());
    let find = |name: &str| models.iter().find(|model| model["name"] == name).unwrap();
    assert_eq!(
        find("openai/gpt-oss-20b")["chat_format"],
        "gpt_oss_no_sysprompt"
    );
    assert_eq!(find("openai/gpt-oss-20b")["train"], serde_json::Value::Null);
    assert!(find("Qwen/Qwen3-8B")["train"].as_f64().unwrap() > 0.0);
    let one = here.ok(&["models", "hosted", "QWEN3-8b"]);
    assert!(
        one.contains("Qwen/Qwen3-8B") && !one.contains("Kimi"),
        "{one}"
    );
    here.refused(&["models", "hosted", "no-such-model"]);
}

#[test]
fn files_of_several_kinds_are_shown_as_training_sees_them() {
    let here = Here::new();
    here.write(
        "alpaca.json",
        r#"[{"instruction": "Say b", "input": "", "output": "b"}]"#,
    );
    here.write("pairs.csv", "prompt,completion\n\"a, a\",b\n\"a, a\",b\n");
    let shown = here.ok(&["data", "show", "alpaca.json"]);
    assert!(shown.contains("Say b") && shown.contains("⟦b"), "{shown}");
    let stats = here.json(&["data", "stats", "pairs.csv", "--max-tokens", "1"]);
    let layout = stats["layout"].as_str().unwrap();
    assert!(layout.starts_with("CSV"), "{stats}");
    assert_eq!(
        (&stats["examples"], &stats["duplicates"]),
        (&2.into(), &1.into()),
        "{stats}"
    );
    assert_eq!(stats["longer_than_max_tokens"], 2, "{stats}");
    here.write("bad.jsonl", "{\"messages\": []}\n{\"question\": 1}\n");
    let error = here.refused(&["data", "stats", "bad.jsonl"]);
    assert!(error.contains("bad.jsonl, line 1"), "{error}");
    here.write(
        "format.jinja",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<|im_end|>",
    );
    let error = here.refused(&[
        "data",
        "show",
        "alpaca.json",
        "--template",
        "no-such-format",
    ]);
    assert!(
        error.contains("neither a Jinja file nor the name"),
        "{error}"
    );
    here.write("broken.jinja", "{% for %}");
    let broken = ["data", "show", "alpaca.json", "--template", "broken.jinja"];
    let error = here.refused(&broken);
    assert!(
        error.contains("--template: broken.jinja cannot be used") && error.contains("syntax error"),
        "{error}"
    );
}
