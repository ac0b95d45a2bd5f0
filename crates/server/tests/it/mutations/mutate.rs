//! Small changes to valid requests, drawn from a seed.

use bytes::Bytes;
use serde_json::{Value, json};

use super::valid::Valid;

pub(super) struct Mutator {
    random: fastrand::Rng,
}

impl Mutator {
    pub(super) fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random }
    }

    /// Changes a request in one to three places.
    pub(super) fn mutate(&mut self, valid: &Valid) -> Valid {
        let mut mutated = valid.clone();
        if self.random.u8(..) < 16 {
            mutated.content_type = self.content_type();
        }
        let structure = valid.json.as_ref().filter(|_| self.random.u8(..) < 180);
        let Some(structure) = structure else {
            let mut bytes = valid.body.to_vec();
            for _ in 0..self.random.usize(1..4) {
                self.change_bytes(&mut bytes);
            }
            mutated.body = bytes.into();
            return mutated;
        };
        let mut structure = structure.clone();
        for _ in 0..self.random.usize(1..4) {
            let chosen = self.random.usize(..count(&structure));
            let node = find(&mut structure, &mut { chosen }).expect("it was counted");
            self.change_node(node);
        }
        mutated.body = Bytes::from(structure.to_string());
        mutated
    }

    /// Changes characters of a path or query.
    pub(super) fn mutate_path(&mut self, path: &str) -> String {
        let mut path = path.to_owned();
        for _ in 0..self.random.usize(1..4) {
            let place = self.random.usize(..=path.len());
            let part = *self.one_of(&[
                "%",
                "%00",
                "%ff",
                "%2f",
                "..",
                "/",
                "//",
                "?",
                "&",
                "=",
                "limit=",
                "-1",
                "9",
                ":",
                "+",
                "%F0%9F%A6%80",
                "#",
                "99999999999999999999",
                "{",
                "*",
                "search",
                "%2e%2e%2f",
                ";",
                "@",
            ]);
            match self.random.u8(..4) {
                0 if place < path.len() => drop(path.remove(place)),
                1 => path.truncate(place.max(1)),
                _ => path.insert_str(place, part),
            }
        }
        path
    }

    fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.random.usize(..items.len())]
    }

    fn content_type(&mut self) -> String {
        let types = [
            "",
            "text/plain",
            "application/x-protobuf",
            "application/json",
            "*/*",
            ";",
        ];
        (*self.one_of(&types)).to_owned()
    }

    fn change_bytes(&mut self, bytes: &mut Vec<u8>) {
        let place = self.random.usize(..=bytes.len());
        let end = (place + self.random.usize(1..9)).min(bytes.len());
        let random = self.random.u8(..);
        match self.random.u8(..7) {
            0 if place < bytes.len() => bytes[place] ^= 1 << (random % 8),
            1 if place < bytes.len() => bytes[place] = random,
            2 => bytes.insert(place, random),
            3 => drop(bytes.drain(place..end)),
            4 => bytes.truncate(place),
            5 => {
                let again = bytes[place..end].to_vec();
                bytes.splice(place..place, again);
            }
            // Lengths and numbers that are larger than anything.
            _ => drop(bytes.splice(place..place, [0xff; 5].into_iter().chain([random & 0x7f]))),
        }
    }

    fn change_node(&mut self, node: &mut Value) {
        match node {
            Value::Object(members) if self.random.bool() && !members.is_empty() => {
                let names: Vec<_> = members.keys().cloned().collect();
                let name = self.one_of(&names).clone();
                match self.random.u8(..4) {
                    0 => drop(members.remove(&name)),
                    1 => {
                        let value = members.remove(&name).unwrap_or_default();
                        members.insert(format!("{name}_"), value);
                    }
                    2 => drop(members.insert("flavour".to_owned(), self.value())),
                    _ => drop(members.insert(name, self.value())),
                }
            }
            Value::Array(items) if self.random.bool() => match self.random.u8(..4) {
                0 => items.clear(),
                1 => items.push(self.value()),
                2 => items.truncate(items.len() / 2),
                _ => {
                    let again = items.clone();
                    for _ in 0..self.random.usize(1..20) {
                        items.extend(again.clone());
                    }
                }
            },
            Value::Number(number) if self.random.bool() => {
                let number = number.as_f64().unwrap_or_default();
                let changed = [
                    -number,
                    number + 1.0,
                    number * 1e9,
                    number / 3.0,
                    number - 1.0,
                ];
                *node = json!(self.one_of(&changed));
            }
            Value::String(text) if self.random.bool() => match self.random.u8(..3) {
                0 => text.push_str(&"x".repeat(self.random.usize(1..2000))),
                1 => text.clear(),
                _ => text.insert_str(0, "../\u{0}\u{1f980}"),
            },
            node => *node = self.value(),
        }
    }

    /// Something that is probably not meant.
    fn value(&mut self) -> Value {
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let values = [
            Value::Null,
            json!(true),
            json!(false),
            json!(0),
            json!(-1),
            json!(1),
            json!(7.5),
            json!(i32::MAX),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(1e308),
            json!(-1e-308),
            json!(""),
            json!("NaN"),
            json!("tinker://../../x/weights/y"),
            json!("\u{0}"),
            json!([]),
            json!({}),
            json!([[]]),
            json!({"type": "dimuon"}),
            json!(vec![1; 1000]),
            deep,
        ];
        self.one_of(&values).clone()
    }
}

/// Counts the values in a value, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Object(members) => members.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// Finds a value by its place in a walk through all of them.
fn find<'a>(value: &'a mut Value, place: &mut usize) -> Option<&'a mut Value> {
    if *place == 0 {
        return Some(value);
    }
    *place -= 1;
    match value {
        Value::Object(members) => members.values_mut().find_map(|value| find(value, place)),
        Value::Array(items) => items.iter_mut().find_map(|value| find(value, place)),
        _ => None,
    }
}
