//! A disk that loses power: what may be left of the files below a folder.
//!
//! It takes a recording ([`Event`]) up to some moment, and makes images of what a loss of power at that
//! moment may leave. Promised is only what POSIX promises:
//!
//! - bytes of a file are durable when the file was synced after they were written. Of what was written
//!   later, any sectors of 512 bytes may have reached the disk and others not, in any order; a file may
//!   also be longer and have zeros where the bytes should be;
//! - a name is durable when its folder was synced after it was made, moved or removed. Of later changes,
//!   any may have reached the disk. Only a rename is whole: both its names or none have changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

/// Something that happened to the files of a folder. Paths are relative to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Create(String),
    Truncate(String, u64),
    Write {
        path: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    Sync(String),
    Rename(String, String),
    Remove(String),
    Folder(String),
    /// A client was told something.
    Told(String),
}

/// How much of what was not synced is on the disk after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Luck {
    /// Nothing.
    None,
    /// All of it: the process was killed, not the machine.
    All,
    /// Anything: drawn from this seed, for each file and each name.
    Drawn(u64),
}

const SECTOR: u64 = 512;

type Node = usize;

/// A file or folder.
#[derive(Clone, Debug, Default)]
struct Contents {
    is_folder: bool,
    synced: Vec<u8>,
    /// What was written since.
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Bytes { offset: u64, bytes: Vec<u8> },
    Length(u64),
}

/// A change of names, which happens as a whole.
#[derive(Clone, Debug)]
struct NameChange {
    removes: Option<(Node, String)>,
    adds: Option<(Node, String, Node)>,
    is_durable: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    nodes: Vec<Contents>,
    /// The names as the process sees them.
    names: Names,
    changes: Vec<NameChange>,
}

type Names = BTreeMap<(Node, String), Node>;

const ROOT: Node = 0;

impl Disk {
    /// An empty folder.
    pub(super) fn new() -> Self {
        let root = Contents {
            is_folder: true,
            ..Contents::default()
        };
        Self {
            nodes: vec![root],
            names: Names::new(),
            changes: Vec::new(),
        }
    }

    /// A folder with files, all of them durable.
    pub(super) fn of(folder: &Path) -> Self {
        let mut disk = Self::new();
        disk.add(folder, "");
        disk.changes.iter_mut().for_each(|c| c.is_durable = true);
        disk
    }

    fn add(&mut self, folder: &Path, prefix: &str) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                self.apply(&Event::Folder(path.clone()));
                self.add(&entry.path(), &format!("{path}/"));
            } else {
                self.apply(&Event::Create(path.clone()));
                let node = self.find(&path).unwrap();
                self.nodes[node].synced = fs::read(entry.path()).unwrap();
            }
        }
    }

    /// Does what the process did.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Create(path) => self.make(path, false),
            Event::Folder(path) => self.make(path, true),
            Event::Truncate(path, length) => self.change(path, Change::Length(*length)),
            Event::Write {
                path,
                offset,
                bytes,
            } => {
                let (offset, bytes) = (*offset, bytes.clone());
                self.change(path, Change::Bytes { offset, bytes });
            }
            Event::Rename(from, to) => {
                if let Some(node) = self.find(from) {
                    let removes = self.place(from);
                    let adds = self.place(to).map(|(folder, name)| (folder, name, node));
                    self.rename(removes, adds);
                }
            }
            Event::Remove(path) => {
                let removes = self.place(path);
                self.rename(removes, None);
            }
            Event::Sync(path) => {
                if let Some(node) = self.find(path) {
                    self.sync(node);
                }
            }
            Event::Told(_) => {}
        }
    }

    fn make(&mut self, path: &str, is_folder: bool) {
        let node = self.nodes.len();
        self.nodes.push(Contents {
            is_folder,
            ..Contents::default()
        });
        let adds = self.place(path).map(|(folder, name)| (folder, name, node));
        self.rename(None, adds);
    }

    fn rename(&mut self, removes: Option<(Node, String)>, adds: Option<(Node, String, Node)>) {
        let change = NameChange {
            removes,
            adds,
            is_durable: false,
        };
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn change(&mut self, path: &str, change: Change) {
        // What is written to a file that has no name any more is lost in any case.
        if let Some(node) = self.find(path) {
            self.nodes[node].unsynced.push(change);
        }
    }

    fn sync(&mut self, node: Node) {
        let contents = &mut self.nodes[node];
        for change in std::mem::take(&mut contents.unsynced) {
            change.apply(&mut contents.synced);
        }
        for change in &mut self.changes {
            let folder = match (&change.adds, &change.removes) {
                (Some((folder, ..)), _) | (None, Some((folder, _))) => *folder,
                (None, None) => continue,
            };
            change.is_durable |= folder == node;
        }
    }

    fn find(&self, path: &str) -> Option<Node> {
        let mut node = ROOT;
        for part in parts(path) {
            node = *self.names.get(&(node, part))?;
        }
        Some(node)
    }

    fn place(&self, path: &str) -> Option<(Node, String)> {
        let mut parts: Vec<_> = parts(path).collect();
        let name = parts.pop()?;
        Some((self.find(&parts.join("/"))?, name))
    }

    /// Writes what a loss of power at this moment may leave.
    pub(super) fn image(&self, luck: Luck, folder: &Path) {
        let mut drawn = match luck {
            Luck::Drawn(seed) => fastrand::Rng::with_seed(seed),
            Luck::None | Luck::All => fastrand::Rng::with_seed(0),
        };
        let mut names = Names::new();
        let often = drawn.f64();
        for change in &self.changes {
            let is_lucky = match luck {
                Luck::None => false,
                Luck::All => true,
                Luck::Drawn(_) => drawn.f64() < often,
            };
            if change.is_durable || is_lucky {
                change.apply(&mut names);
            }
        }
        self.write(ROOT, &names, luck, &mut drawn, folder);
    }

    fn write(&self, node: Node, names: &Names, luck: Luck, drawn: &mut fastrand::Rng, path: &Path) {
        if !self.nodes[node].is_folder {
            fs::write(path, self.nodes[node].image(luck, drawn)).unwrap();
            return;
        }
        fs::create_dir_all(path).unwrap();
        let inside = names.range((node, String::new())..(node + 1, String::new()));
        for ((_, name), child) in inside {
            self.write(*child, names, luck, drawn, &path.join(name));
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        if let Some(key) = &self.removes {
            names.remove(key);
        }
        if let Some((folder, name, node)) = &self.adds {
            names.insert((*folder, name.clone()), *node);
        }
    }
}

impl Change {
    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Self::Bytes { offset, bytes } => {
                let end = *offset as usize + bytes.len();
                if contents.len() < end {
                    contents.resize(end, 0);
                }
                contents[*offset as usize..end].copy_from_slice(bytes);
            }
            Self::Length(length) => contents.resize(*length as usize, 0),
        }
    }

    /// Cuts a write where a disk may tear it.
    fn sectors(&self) -> Vec<Self> {
        let Self::Bytes { offset, bytes } = self else {
            return vec![self.clone()];
        };
        let (mut pieces, mut offset, mut rest) = (Vec::new(), *offset, &bytes[..]);
        while !rest.is_empty() {
            let room = (SECTOR - offset % SECTOR) as usize;
            let (piece, after) = rest.split_at(room.min(rest.len()));
            let bytes = piece.to_vec();
            pieces.push(Self::Bytes { offset, bytes });
            (offset, rest) = (offset + piece.len() as u64, after);
        }
        pieces
    }
}

impl Contents {
    fn image(&self, luck: Luck, drawn: &mut fastrand::Rng) -> Vec<u8> {
        let mut contents = self.synced.clone();
        let apply = |contents: &mut Vec<u8>, changes: &[Change]| {
            changes.iter().for_each(|change| change.apply(contents));
        };
        match luck {
            Luck::None => {}
            Luck::All => apply(&mut contents, &self.unsynced),
            Luck::Drawn(_) => match drawn.u8(..6) {
                0 => {}
                1 => apply(&mut contents, &self.unsynced),
                // In order, and torn where it ends.
                2 | 3 => {
                    let sectors: Vec<_> = self.unsynced.iter().flat_map(Change::sectors).collect();
                    let until = drawn.usize(..=sectors.len());
                    apply(&mut contents, &sectors[..until]);
                }
                // In any order.
                4 => {
                    let often = drawn.f64();
                    for sector in self.unsynced.iter().flat_map(Change::sectors) {
                        if drawn.f64() < often {
                            sector.apply(&mut contents);
                        }
                    }
                }
                // Its length, but not its bytes.
                _ => {
                    let mut all = contents.clone();
                    apply(&mut all, &self.unsynced);
                    contents.resize(all.len(), 0);
                }
            },
        }
        contents
    }
}

fn parts(path: &str) -> impl Iterator<Item = String> {
    let parts = Path::new(path).components();
    parts.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_str()?.to_owned()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn write(path: &str, bytes: &str) -> Event {
        let (path, bytes) = (path.to_owned(), bytes.as_bytes().to_vec());
        let offset = 0;
        Event::Write {
            path,
            offset,
            bytes,
        }
    }

    fn sync(path: &str) -> Event {
        Event::Sync(path.to_owned())
    }

    fn create(path: &str) -> Event {
        Event::Create(path.to_owned())
    }

    /// What a file may hold after these events; `None` if it is not there.
    fn outcomes(events: &[Event], path: &str) -> BTreeSet<Option<Vec<u8>>> {
        let mut disk = Disk::new();
        events.iter().for_each(|event| disk.apply(event));
        let drawn = (0..200).map(Luck::Drawn);
        let all = drawn.chain([Luck::None, Luck::All]).map(|luck| {
            let folder = tempfile::tempdir().unwrap();
            disk.image(luck, folder.path());
            fs::read(folder.path().join(path)).ok()
        });
        all.collect()
    }

    fn texts<const N: usize>(texts: [Option<&str>; N]) -> BTreeSet<Option<Vec<u8>>> {
        let texts = texts.into_iter();
        texts
            .map(|text| text.map(|text| text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn bytes_need_a_sync_of_the_file_and_a_name_one_of_its_folder() {
        let nothing = [create("a"), write("a", "x")];
        let (none, empty, zero, whole) = (None, Some(""), Some("\0"), Some("x"));
        assert_eq!(outcomes(&nothing, "a"), texts([none, empty, zero, whole]));
        let bytes = [create("a"), write("a", "x"), sync("a")];
        assert_eq!(outcomes(&bytes, "a"), texts([none, whole]));
        let name = [create("a"), write("a", "x"), sync("")];
        assert_eq!(outcomes(&name, "a"), texts([empty, zero, whole]));
        let both = [create("a"), write("a", "x"), sync("a"), sync("")];
        assert_eq!(outcomes(&both, "a"), texts([whole]));
    }

    #[test]
    fn a_rename_is_whole_and_durable_with_the_folder_that_it_leads_to() {
        let mut events = vec![
            Event::Folder("f".to_owned()),
            create("a"),
            write("a", "x"),
            sync("a"),
            sync(""),
            Event::Rename("a".to_owned(), "f/b".to_owned()),
        ];
        assert_eq!(outcomes(&events, "a"), texts([None, Some("x")]));
        assert_eq!(outcomes(&events, "f/b"), texts([None, Some("x")]));
        events.push(sync("f"));
        assert_eq!(outcomes(&events, "a"), texts([None]));
        assert_eq!(outcomes(&events, "f/b"), texts([Some("x")]));
    }

    #[test]
    fn what_was_removed_may_be_there_until_its_folder_is_synced() {
        let mut events = vec![create("a"), sync(""), Event::Remove("a".to_owned())];
        assert_eq!(outcomes(&events, "a"), texts([None, Some("")]));
        events.push(sync(""));
        assert_eq!(outcomes(&events, "a"), texts([None]));
    }

    #[test]
    fn a_write_is_torn_at_sectors() {
        let (old, new) = ("a".repeat(1024), "b".repeat(1024));
        let events = [
            create("f"),
            write("f", &old),
            sync("f"),
            sync(""),
            write("f", &new),
        ];
        let halves = [[&old[..512], &new[512..]], [&new[..512], &old[512..]]];
        let [first, second] = halves.map(|half| half.concat());
        let expected = [&old, &new, &first, &second].map(|text| Some(text.as_str()));
        assert_eq!(outcomes(&events, "f"), texts(expected));
    }
}
