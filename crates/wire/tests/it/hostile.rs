//! Hostile bytes: golden vectors with something broken, 100,000 times each for protobuf and
//! JSON. No decoder may panic. The seed is fixed, so that a failure comes back.
//!
//! `fuzz/` looks for what these mutations do not reach.

use crate::decoders::{self, Decoder};
use crate::golden;
use serde_json::{Value, json};

const CASES: u64 = 100_000;

#[test]
fn no_broken_message_makes_a_decoder_panic() {
    let seeds: Vec<(Decoder, Vec<u8>)> = golden::messages()
        .into_iter()
        .filter_map(|(name, bytes)| Some((decoders::find(decoders::MESSAGES, &name)?, bytes)))
        .collect();
    let mut random = Random(1);
    for _ in 0..CASES {
        let (decoder, seed) = &seeds[random.below(seeds.len())];
        let mut bytes = seed.clone();
        for _ in 0..=random.below(3) {
            break_bytes(&mut bytes, &mut random);
        }
        let _ = decoder(&bytes);
    }
}

#[test]
fn no_broken_json_makes_a_decoder_panic() {
    let seeds = golden::json_bodies();
    let others: Vec<Decoder> = [decoders::REQUESTS, decoders::ANSWERS, decoders::OTHER_JSON]
        .into_iter()
        .flatten()
        .map(|(_, decoder)| *decoder)
        .collect();
    let mut random = Random(2);
    for case in 0..CASES {
        let (decoder, seed) = &seeds[random.below(seeds.len())];
        let mut value = seed.clone();
        for _ in 0..=random.below(3) {
            break_value(&mut value, &mut random);
        }
        let mut bytes = serde_json::to_vec(&value).unwrap();
        if case % 4 == 0 {
            break_bytes(&mut bytes, &mut random);
        }
        let _ = decoder(&bytes);
        let _ = others[random.below(others.len())](&bytes);
    }
}

#[test]
fn no_broken_frame_path_or_container_panics() {
    let seeds = [
        tinkrs_wire::compress::compress(&[7; 5_000]),
        b"tinker://s:train:0/sampler_weights/step-1".to_vec(),
        vec![0x03, 0x02, 0x88, 0x01, 0x50],
        vec![0xfe, 0x00, 0x01, 0x05],
    ];
    let mut random = Random(3);
    for _ in 0..10_000 {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(3) {
            break_bytes(&mut bytes, &mut random);
        }
        decoders::try_rest(&bytes);
    }
}

/// SplitMix64: small, seeded, and good enough to pick what to break.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Long varints, which are lengths, sizes and counts at their limits.
const LIMITS: [&[u8]; 4] = [
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02],
];

fn break_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(6) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.next() as u8),
        4 => {
            let limit = LIMITS[random.below(LIMITS.len())];
            let end = (at + 1).min(bytes.len());
            bytes.splice(at..end, limit.iter().copied());
        }
        _ => {
            let end = at + random.below((bytes.len() - at).min(16));
            let part = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, part);
        }
    }
}

fn break_value(value: &mut Value, random: &mut Random) {
    let children = match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    };
    // Descends most of the time, so that deep members break as often as shallow ones.
    if children > 0 && random.below(5) > 0 {
        let child = random.below(children);
        return match value {
            Value::Array(items) => break_value(&mut items[child], random),
            Value::Object(members) => {
                break_value(members.values_mut().nth(child).unwrap(), random);
            }
            _ => {}
        };
    }
    let replacements = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(u64::from(u32::MAX)),
        json!(true),
        json!(""),
        json!("tinker://a/weights/b"),
        json!([]),
        json!([null]),
        json!([u64::MAX, 0]),
        json!([[1, -1.0], null]),
        json!({}),
        json!({"type": "dimuon", "version": 2}),
    ];
    match (random.below(4), &mut *value) {
        (0, Value::Array(items)) if !items.is_empty() => {
            items.remove(random.below(children));
        }
        (0, Value::Object(members)) if !members.is_empty() => {
            let name = members.keys().nth(random.below(children)).cloned();
            members.remove(&name.unwrap_or_default());
        }
        (1, Value::Array(items)) if !items.is_empty() => {
            let copy = items[random.below(children)].clone();
            items.push(copy);
        }
        _ => *value = replacements[random.below(replacements.len())].clone(),
    }
}
