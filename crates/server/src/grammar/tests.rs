use std::time::Instant;

use serde_json::{Value, json};
use tinkrs_backend::{Constraint, Grammar, TokenMask};
use tinkrs_chat::Tokenizer;

use super::*;

const SIZE: usize = 700;

/// A small byte-level vocabulary with control tokens.
fn tokenizer() -> Tokenizer {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../chat/tests/data/tokenizer.json"
    );
    Tokenizer::from_path(path).unwrap()
}

struct Fixture {
    bytes: TokenBytes,
    grammars: Grammars,
}

impl Fixture {
    fn new() -> Self {
        let bytes = tokenizer().token_bytes(SIZE);
        let grammars = Grammars::new(&bytes, SIZE).unwrap();
        Self { bytes, grammars }
    }

    fn token(&self, text: &str) -> u32 {
        let mut tokens = 0..SIZE as u32;
        let found = tokens.find(|token| self.bytes.get(*token) == text.as_bytes());
        found.unwrap_or_else(|| panic!("no token is {text:?}"))
    }

    fn end(&self) -> u32 {
        self.token("<|im_end|>")
    }

    fn compile(&self, schema: &Value) -> Result<Arc<dyn Grammar>, InvalidInput> {
        let shape = Shape::JsonSchema(schema);
        let compiled = self.grammars.compile(
            "schema",
            &shape,
            &[self.end()],
            None,
            Memory::default(),
            &|| true,
        );
        Ok(compiled?)
    }

    /// Draws allowed tokens at random until the sample ends, or `limit` tokens have come.
    fn draw(&self, constraint: &mut dyn Constraint, seed: u64, limit: usize) -> (String, bool) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut text = Vec::new();
        for _ in 0..limit {
            let allowed = self.allowed(constraint);
            // Ends are preferred, so that samples stay short.
            let is_end = |token: &&u32| **token == self.end() || self.bytes.get(**token) == b"\"";
            let token = match allowed.iter().find(is_end) {
                Some(end) if random.u8(..4) > 0 => *end,
                _ => allowed[random.usize(..allowed.len())],
            };
            let may_go_on = constraint.accept(token).unwrap();
            if token == self.end() {
                assert!(!may_go_on);
                return (String::from_utf8_lossy(&text).into_owned(), true);
            }
            text.extend_from_slice(self.bytes.get(token));
        }
        (String::from_utf8_lossy(&text).into_owned(), false)
    }

    fn allowed(&self, constraint: &mut dyn Constraint) -> Vec<u32> {
        let mut mask = TokenMask::new(SIZE);
        constraint.allow(&mut mask).unwrap();
        (0..SIZE as u32)
            .filter(|token| mask.contains(*token))
            .collect()
    }

    /// Takes a text byte by byte, and returns whether the sample may end behind it; `None` if it cannot be said.
    fn ends_after(&self, constraint: &mut dyn Constraint, text: &str) -> Option<bool> {
        for character in text.chars() {
            let token = self.token(&character.to_string());
            if !self.allowed(constraint).contains(&token) {
                return None;
            }
            constraint.accept(token).unwrap();
        }
        Some(self.allowed(constraint).contains(&self.end()))
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn whatever_is_drawn_keeps_to_the_schema() {
    let fixture = Fixture::new();
    let grammar = fixture.compile(&person()).unwrap();
    let mut ended = 0;
    for seed in 0..30 {
        let (text, has_ended) = fixture.draw(&mut *grammar.begin(), seed, 300);
        if !has_ended {
            continue;
        }
        ended += 1;
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text:?}"));
        assert!(
            value["name"].as_str().unwrap().chars().count() <= 8,
            "{text}"
        );
        assert!(value["age"].as_u64().unwrap() <= 150, "{text}");
        assert!(value.as_object().unwrap().len() <= 3, "{text}");
    }
    assert!(ended > 15, "{ended}");
}

#[test]
fn the_end_is_allowed_where_the_document_is_complete_and_nowhere_else() {
    let fixture = Fixture::new();
    let object = fixture
        .grammars
        .compile(
            "format",
            &Shape::JsonObject,
            &[fixture.end()],
            None,
            Memory::default(),
            &|| true,
        )
        .unwrap();
    let cases = [
        ("", Some(false)),
        ("{", Some(false)),
        ("{}", Some(true)),
        (r#"{"a": [1, "#, Some(false)),
        (r#"{"a": [1, {"b": null}]}"#, Some(true)),
        ("[", None),
        ("{}{", None),
        ("{,", None),
    ];
    for (text, expected) in cases {
        let ends = fixture.ends_after(&mut *object.begin(), text);
        assert_eq!(ends, expected, "{text:?}");
    }
    let number = fixture.compile(&json!({"type": "integer"})).unwrap();
    let mut number = number.begin();
    assert_eq!(
        fixture.ends_after(&mut *number, "12"),
        Some(true),
        "or goes on"
    );
    assert_eq!(fixture.ends_after(&mut *number, "3"), Some(true));
}

#[test]
fn a_complete_document_without_an_end_token_ends_by_itself() {
    let fixture = Fixture::new();
    let grammar = fixture.grammars.compile(
        "format",
        &Shape::JsonObject,
        &[],
        None,
        Memory::default(),
        &|| true,
    );
    let mut sample = grammar.unwrap().begin();
    assert!(sample.accept(fixture.token("{")).unwrap());
    assert!(!sample.accept(fixture.token("}")).unwrap());
}

#[test]
fn control_tokens_are_no_text() {
    let fixture = Fixture::new();
    let grammar = fixture.compile(&json!({"type": "string"})).unwrap();
    let mut sample = grammar.begin();
    sample.accept(fixture.token("\"")).unwrap();
    let allowed = fixture.allowed(&mut *sample);
    assert!(allowed.contains(&fixture.token("<")));
    for token in allowed {
        let text = String::from_utf8_lossy(fixture.bytes.get(token));
        assert!(!fixture.bytes.is_added(token), "{text}");
    }
}

#[test]
fn thoughts_come_before_the_document_if_the_model_has_them() {
    let fixture = Fixture::new();
    let think = |is_open| {
        let thinking = Thinking {
            opening: "<think>",
            closing: "</think>",
            is_open,
        };
        let shape = Shape::JsonObject;
        let grammar = fixture.grammars.compile(
            "format",
            &shape,
            &[fixture.end()],
            Some(thinking),
            Memory::default(),
            &|| true,
        );
        grammar.unwrap().begin()
    };
    let mut sample = think(false);
    let first = fixture.allowed(&mut *sample);
    assert!(first.contains(&fixture.token("<think>")) && first.contains(&fixture.token("{")));
    assert!(!first.contains(&fixture.token("a")));
    assert_eq!(
        fixture.ends_after(&mut *sample, "{}"),
        Some(true),
        "without thoughts"
    );

    for (mut sample, is_open) in [(think(false), false), (think(true), true)] {
        if !is_open {
            sample.accept(fixture.token("<think>")).unwrap();
        }
        let free = fixture.allowed(&mut *sample);
        assert!(free.contains(&fixture.token("a")) && !free.contains(&fixture.end()));
        assert_eq!(fixture.ends_after(&mut *sample, "no } yet"), Some(false));
        sample.accept(fixture.token("</think>")).unwrap();
        assert_eq!(fixture.ends_after(&mut *sample, "\n\n{}"), Some(true));
        assert_eq!(fixture.ends_after(&mut *sample, "x"), None);
    }
}

#[test]
fn broken_and_unsatisfiable_schemas_are_refused_by_name() {
    let fixture = Fixture::new();
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    let many: Vec<Value> = (0..30_000).map(|number| json!(number)).collect();
    let cases = [
        json!(5),
        json!(null),
        json!([]),
        json!(false),
        json!({"type": "strin"}),
        json!({"type": 5}),
        json!({"properties": 5}),
        json!({"type": "string", "minLength": 5, "maxLength": 2}),
        json!({"type": "integer", "minimum": 5, "maximum": 2}),
        json!({"type": "string", "pattern": "("}),
        json!({"enum": []}),
        json!({"$ref": "#/nowhere"}),
        json!({"$ref": "http://127.0.0.1/schema"}),
        json!({"not": {"type": "string"}}),
        json!({"x-guidance": {"lenient": true}}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "array", "minItems": 1e18}),
        json!({"enum": many}),
        json!({"const": "x".repeat(1 << 20)}),
        json!({"type": "integer", "multipleOf": 1_000_000_007}),
        json!({"allOf": [{"multipleOf": 999_983}, {"multipleOf": 999_979}]}),
        deep,
    ];
    for schema in cases {
        let Err(error) = fixture.compile(&schema) else {
            panic!("{:.200} compiles", schema.to_string());
        };
        assert_eq!(error.field(), "schema");
        assert!(error.to_string().len() < 1000, "{error}");
    }
    fixture.compile(&json!(true)).unwrap();
    fixture.compile(&json!({})).unwrap();
}

#[test]
fn where_the_library_panicked_is_not_told() {
    let panic = "panic: attempt to multiply with overflow\n<backtrace>\n   0: std::panicking";
    assert_eq!(reason(panic), "it could not be compiled");
    assert_eq!(reason("a regex parse error"), "a regex parse error");
}

/// Prints how long hostile schemas take: `cargo test -p tinkrs-server --lib hostile -- --nocapture`.
#[test]
#[allow(clippy::print_stdout, reason = "it is a measurement")]
fn hostile_schemas_compile_or_are_refused() {
    let conjunction = |count: usize| -> Value {
        let part = |n| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{n}}}$")});
        json!({"allOf": (0..count).map(part).collect::<Vec<_>>()})
    };
    let properties = |count: usize| -> Value {
        let members = (0..count).map(|n| (format!("p{n}"), json!({"type": "string"})));
        json!({"type": "object", "properties": members.collect::<serde_json::Map<_, _>>()})
    };
    let names: Vec<Value> = (0..5_000).map(|n| json!(format!("value {n}"))).collect();
    let cases = [
        ("500 properties", properties(500)),
        ("a conjunction of 3 patterns", conjunction(3)),
        ("a conjunction of 12 patterns", conjunction(12)),
        ("a conjunction of 60 patterns", conjunction(60)),
        ("5,000 names", json!({"enum": names})),
        (
            "counted",
            json!({"type": "string", "pattern": "^((a{1,20}){1,20}){1,20}$"}),
        ),
        (
            "dots",
            json!({"type": "string", "pattern": "^(.*a.*b.*c.*d.*e.*f.*g.*h.*){20}$"}),
        ),
        (
            "states",
            json!({"type": "string", "pattern": "^(a|b)*a(a|b){300}$"}),
        ),
    ];
    let work = move || {
        let fixture = Fixture::new();
        for (name, schema) in &cases {
            let start = Instant::now();
            let compiled = fixture.compile(schema);
            let took = start.elapsed();
            let Ok(grammar) = compiled else {
                println!("{name}: refused after {took:?}");
                continue;
            };
            let mut sample = grammar.begin();
            let (mut steps, start) = (0, Instant::now());
            let mut failed = None;
            for _ in 0..60 {
                let mut mask = TokenMask::new(SIZE);
                if let Err(error) = sample.allow(&mut mask) {
                    failed = Some(error.to_string());
                    break;
                }
                let Some(token) = (0..SIZE as u32).find(|token| mask.contains(*token)) else {
                    break;
                };
                steps += 1;
                if !matches!(sample.accept(token), Ok(true)) {
                    break;
                }
            }
            println!(
                "{name}: compiled in {took:?}, {steps} steps in {:?} {failed:?}",
                start.elapsed()
            );
        }
    };
    let thread = std::thread::Builder::new().stack_size(128 << 20);
    thread.spawn(work).unwrap().join().unwrap();
}

/// Prints how long masks take: `TINKRS_TOKENIZER=… cargo test --release -p tinkrs-server masks -- --nocapture`.
#[test]
#[allow(clippy::print_stdout, reason = "it is a measurement")]
fn masks_of_a_large_vocabulary() {
    let Ok(path) = std::env::var("TINKRS_TOKENIZER") else {
        return println!("skipped: set TINKRS_TOKENIZER to the tokenizer of a large vocabulary");
    };
    let tokenizer = Tokenizer::from_path(path).unwrap();
    let size = 151_936;
    let start = Instant::now();
    let bytes = tokenizer.token_bytes(size);
    println!("bytes of tokens: {:?}", start.elapsed());
    let start = Instant::now();
    let grammars = Grammars::new(&bytes, size).unwrap();
    println!("vocabulary: {:?}", start.elapsed());
    let person = person();
    let shapes = [
        ("object", Shape::JsonObject),
        ("schema", Shape::JsonSchema(&person)),
    ];
    for (name, shape) in shapes {
        let start = Instant::now();
        let grammar = grammars
            .compile(
                "schema",
                &shape,
                &[151_645],
                None,
                Memory::default(),
                &|| true,
            )
            .unwrap();
        println!("{name}: compiled in {:?}", start.elapsed());
        let text = r#"{"name": "Ada Love", "age": 36, "tags": ["a", "b", "a"]}"#;
        let tokens = tokenizer.encode(text).unwrap();
        let mut mask = TokenMask::new(size);
        let (mut all, mut worst) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
        for round in 0..20 {
            let mut sample = grammar.begin();
            for token in &tokens {
                let start = Instant::now();
                mask.clear();
                sample.allow(&mut mask).unwrap();
                sample.accept(*token).unwrap();
                if round > 0 {
                    all += start.elapsed();
                    worst = worst.max(start.elapsed());
                }
            }
        }
        let mean = all / (19 * tokens.len() as u32);
        println!("{name}: {mean:?} a token, at most {worst:?}");
    }
}

#[test]
fn a_sample_that_cannot_go_on_names_the_member_of_the_request() {
    let fixture = Fixture::new();
    let grammar = fixture.compile(&json!({"type": "integer"})).unwrap();
    let mut sample = grammar.begin();
    // What the library fails with midway; the sampler never draws what was not allowed.
    let error = sample.accept(fixture.token("a")).unwrap_err().to_string();
    assert!(error.contains("`schema` became too complex"), "{error}");
}
