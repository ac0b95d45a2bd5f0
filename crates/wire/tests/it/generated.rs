//! The committed protobuf code is what the schema gives today.

use std::path::Path;

#[test]
fn generated_code_matches_the_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    let schema = protox::compile(["tinker_public.proto"], [root.join("proto")]).unwrap();
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        .disable_comments(["."])
        .out_dir(out.path())
        .compile_fds(schema)
        .unwrap();

    let fresh = std::fs::read_to_string(out.path().join("tinker_public.rs")).unwrap();
    let committed = root.join("src/generated/tinker_public.rs");
    if std::env::var_os("TINKRS_BLESS").is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(committed).unwrap_or_default();
    assert!(
        committed == fresh,
        "out of date: TINKRS_BLESS=1 cargo test -p tinkrs-wire generated"
    );
}
