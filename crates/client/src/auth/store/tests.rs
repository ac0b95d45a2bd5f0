use super::*;
use tinkrs_wire::op::get_api_key::{OrgDetails, UserDetails};

fn details() -> KeyDetails {
    KeyDetails {
        org_details: OrgDetails {
            name: "Example Org".to_owned(),
        },
        user_details: UserDetails {
            email: "user@example.com".to_owned(),
        },
    }
}

/// A store in a directory that does not exist yet, and what keeps it alive.
fn empty_store() -> (CredentialStore, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = CredentialStore::in_directory(folder.path().join("home/.tinker"));
    (store, folder)
}

fn store_with(text: &str) -> (CredentialStore, tempfile::TempDir) {
    let (store, folder) = empty_store();
    fs::create_dir_all(store.path().parent().unwrap()).unwrap();
    fs::write(store.path(), text).unwrap();
    (store, folder)
}

#[test]
fn the_file_is_written_as_the_official_tool_writes_it() {
    let (store, _folder) = empty_store();
    let mut stored = StoredCredentials::default();
    let key = StoredKey {
        note: Some(String::new()),
        details: Some(details()),
        ..StoredKey::manual("tml-1", "tinker-cli-laptop")
    };
    stored.insert_default("1234", key);
    store.save(&stored).unwrap();

    let expected = r#"{
  "version": 1,
  "default": "1234",
  "keys": {
    "1234": {
      "type": "manual",
      "key": "tml-1",
      "name": "tinker-cli-laptop",
      "note": "",
      "details": {
        "org_details": {
          "name": "Example Org"
        },
        "user_details": {
          "email": "user@example.com"
        }
      }
    }
  }
}
"#;
    assert_eq!(fs::read_to_string(store.path()).unwrap(), expected);
    assert_eq!(store.load().unwrap(), stored);
}

#[test]
fn absent_members_are_left_out() {
    let (store, _folder) = empty_store();
    let mut stored = StoredCredentials::default();
    stored.insert_default("7", StoredKey::manual("tml-1", "k"));
    store.save(&stored).unwrap();
    let text = fs::read_to_string(store.path()).unwrap();
    assert!(!text.contains("null") && !text.contains("note"), "{text}");

    stored.remove_default();
    store.save(&stored).unwrap();
    let text = fs::read_to_string(store.path()).unwrap();
    assert_eq!(text, "{\n  \"version\": 1,\n  \"keys\": {}\n}\n");
}

#[test]
fn a_missing_file_is_an_empty_store() {
    let (store, _folder) = empty_store();
    assert_eq!(store.load().unwrap(), StoredCredentials::default());
}

#[test]
fn a_default_that_names_no_key_is_none() {
    let key = r#"{"type": "manual", "key": "tml-1", "name": "k"}"#;
    let (store, _folder) = store_with(&format!(
        r#"{{"version": 1, "default": "9", "keys": {{"7": {key}}}}}"#
    ));
    let mut stored = store.load().unwrap();
    assert_eq!(stored.default_key(), None);
    assert_eq!(stored.default_secret(), None);
    assert_eq!(stored.remove_default(), None);
    assert_eq!(stored.keys().len(), 1, "the other key stays");
}

#[test]
fn malformed_files_are_errors_that_name_the_file_and_show_no_key() {
    let cases = [
        ("", "this is not JSON"),
        ("{", "this is not JSON"),
        ("[]", "wrong type"),
        (r#"{"keys": {}}"#, "missing"),
        (r#"{"version": 2, "keys": {}}"#, "version 2 is not known"),
        (r#"{"version": "1", "keys": {}}"#, "wrong type"),
        (r#"{"version": 1}"#, "missing"),
        (r#"{"version": 1, "keys": "tml-hidden"}"#, "wrong type"),
        (
            r#"{"version": 1, "keys": {"1": "tml-hidden"}}"#,
            "wrong type",
        ),
        (
            r#"{"version": 1, "keys": {"1": {"type": "tml-hidden", "key": "", "name": ""}}}"#,
            "wrong type",
        ),
        (
            r#"{"version": 1, "keys": {"1": {"type": "manual", "key": "tml-hidden"}}}"#,
            "missing",
        ),
        (
            r#"{"version": 1, "keys":
                {"1": {"type": "generated", "key": "tml-hidden", "name": "k"}}}"#,
            "a generated key lacks its details",
        ),
    ];
    for (text, expected) in cases {
        let (store, _folder) = store_with(text);
        let error = store.load().unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(expected), "{text}: {shown}");
        assert!(shown.contains(FILE_NAME), "{text}: {shown}");
        assert!(!shown.contains("hidden"), "{text}: {shown}");
    }
}

#[test]
fn keys_of_older_tools_are_read_and_kept() {
    let details = serde_json::to_string(&details()).unwrap();
    let (store, _folder) = store_with(&format!(
        r#"{{"version": 1, "default": "7", "keys":
            {{"7": {{"type": "generated", "key": "tml-1", "name": "k", "details": {details}}}}}}}"#
    ));
    let stored = store.load().unwrap();
    let (id, key) = stored.default_key().unwrap();
    assert_eq!((id, key.kind), ("7", KeyKind::Generated));
    store.save(&stored).unwrap();
    assert_eq!(store.load().unwrap(), stored);
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_the_file_and_enter_its_directory() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;

    let (store, _folder) = empty_store();
    store.save(&StoredCredentials::default()).unwrap();
    assert_eq!(mode(&store.path()), 0o600);
    assert_eq!(mode(store.path().parent().unwrap()), 0o700);

    // A file that was open to everybody is replaced by one that is not.
    fs::set_permissions(store.path(), PermissionsExt::from_mode(0o666)).unwrap();
    store.save(&StoredCredentials::default()).unwrap();
    assert_eq!(mode(&store.path()), 0o600);
}

#[cfg(unix)]
#[test]
fn the_modes_hold_under_any_umask() {
    // The umask belongs to the process, so other tests must not see it change.
    let this = std::env::current_exe().unwrap();
    let test = "auth::store::tests::only_the_owner_may_read_the_file_and_enter_its_directory";
    for umask in ["000", "022", "077", "277"] {
        let script = format!(r#"umask {umask}; exec "$0" --exact {test}"#);
        let mut shell = std::process::Command::new("/bin/sh");
        let output = shell.args(["-c", &script]).arg(&this).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "umask {umask}: {shown}");
        assert!(shown.contains("1 passed"), "umask {umask}: {shown}");
    }
}

#[test]
fn saving_leaves_no_temporary_file_behind() {
    let (store, _folder) = empty_store();
    let directory = store.path().parent().unwrap().to_owned();
    // A directory in the file's place makes the last step fail.
    fs::create_dir_all(store.path().join("in the way")).unwrap();
    let error = store.save(&StoredCredentials::default()).unwrap_err();
    assert!(error.to_string().contains(FILE_NAME), "{error}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);

    fs::remove_dir_all(store.path()).unwrap();
    store.save(&StoredCredentials::default()).unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
}

#[test]
fn the_stored_key_is_not_printed() {
    let mut stored = StoredCredentials::default();
    stored.insert_default("7", StoredKey::manual("tml-hidden", "k"));
    assert!(!format!("{stored:?}").contains("hidden"));
}
