//! The wire form against what the official SDK wrote and read.
//!
//! Each submodule walks one folder of `conformance/golden/vectors`. A vector that no decoder
//! here knows fails its test, so that a new one cannot be skipped in silence.

use crate::decoders::{self, Decoder};
use serde_json::Value;
use std::path::{Path, PathBuf};

mod http;
mod old;
mod proto;
mod requests;
mod responses;
mod routes;
mod views;

/// One file of a folder.
struct Vector {
    /// `<operation>.<variant>` or `<message>.<variant>`.
    name: String,
    json: Value,
}

impl Vector {
    fn text(&self, member: &str) -> &str {
        self.json[member]
            .as_str()
            .unwrap_or_else(|| panic!("{}: no text `{member}`", self.name))
    }

    /// The bytes of a member as they would arrive.
    fn bytes(&self, member: &str) -> Vec<u8> {
        serde_json::to_vec(&self.json[member]).unwrap()
    }

    /// What comes before the first point of the name.
    fn subject(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

fn folder(name: &str) -> PathBuf {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/golden/vectors");
    vectors.join(name)
}

/// Reads the JSON files of a folder, of which there must be some.
fn vectors(name: &str) -> Vec<Vector> {
    let folder = folder(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let vectors: Vec<Vector> = paths
        .iter()
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .map(|path| Vector {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            json: serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap(),
        })
        .collect();
    assert!(!vectors.is_empty(), "{folder:?} holds no vectors");
    vectors
}

/// The protobuf messages with their names, to break.
pub(crate) fn messages() -> Vec<(String, Vec<u8>)> {
    vectors("proto")
        .iter()
        .map(|vector| (vector.subject().to_owned(), proto::bytes_of(vector).into()))
        .collect()
}

/// The JSON bodies with their decoders, to break.
pub(crate) fn json_bodies() -> Vec<(Decoder, Value)> {
    let of_folder = |name: &str, decoders: &'static [(&str, Decoder)]| {
        let found = vectors(name).into_iter().filter_map(move |vector| {
            let subject = vector.subject();
            let decoder = decoders::find(decoders, subject)
                .or_else(|| decoders::find(decoders::OTHER_JSON, subject))?;
            Some((decoder, vector.json["body"].clone()))
        });
        found.collect::<Vec<_>>()
    };
    let mut bodies = of_folder("requests", decoders::REQUESTS);
    bodies.extend(of_folder("responses", decoders::ANSWERS));
    for version in old::versions() {
        bodies.extend(of_folder(&format!("old/{version}"), decoders::REQUESTS));
    }
    bodies
}

#[test]
fn no_vector_is_without_a_test() {
    let walked = ["http", "old", "proto", "requests", "responses"];
    for entry in std::fs::read_dir(folder("")).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(
            walked.iter().any(|known| name == *known),
            "{name:?} is not walked"
        );
    }
    for entry in std::fs::read_dir(folder("proto")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_str().unwrap();
        let stem = name.strip_suffix(".zst").unwrap_or(name);
        let stem = stem.strip_suffix(".bin").unwrap_or(stem);
        let json = stem.strip_suffix(".json").unwrap_or(stem).to_owned() + ".json";
        assert!(Path::new(&json).exists(), "{name} has no JSON beside it");
    }
}
