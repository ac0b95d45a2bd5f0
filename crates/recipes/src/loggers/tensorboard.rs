//! Event files of TensorBoard.
//!
//! A file is a sequence of records, each `length, crc(length), bytes, crc(bytes)`, whose bytes are an `Event` message. The checksums are
//! CRC-32C, rotated and shifted by a constant. A run that resumes begins a new file, whose first event tells TensorBoard to forget
//! what earlier files say of this step and those after it.

use super::MetricsLog;
use crate::Error;
use crate::run::{Numbers, read_metrics};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes event files into the folder `tensorboard` of a run.
#[derive(Debug)]
pub struct TensorBoardLog {
    folder: PathBuf,
    file: Option<(File, PathBuf)>,
}

impl TensorBoardLog {
    /// Makes a log in the folder of a run. The file is there with the first number.
    pub fn new(run: impl AsRef<Path>) -> Self {
        Self {
            folder: run.as_ref().join("tensorboard"),
            file: None,
        }
    }

    /// Opens the file, if it is not open. `numbers` are about to be written.
    fn open(&mut self, step: usize, numbers: &Numbers) -> Result<&mut (File, PathBuf), Error> {
        if self.file.is_none() {
            std::fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            // TensorBoard reads files in the order of their names.
            let name = format!(
                "events.out.tfevents.{}.{:09}.tinkrs",
                now.as_secs(),
                now.subsec_nanos()
            );
            let path = self.folder.join(name);
            let file = File::create_new(&path).map_err(Error::file("create", &path))?;
            let mut opened = (file, path);
            let version = Message::default()
                .double(1, now.as_secs_f64())
                .bytes(3, b"brain.Event:2");
            record(&mut opened, &version.0)?;
            let begins = Message::default().varint(1, 1);
            let begins = event(step).bytes(7, &begins.0);
            record(&mut opened, &begins.0)?;
            // What was measured before this step, such as an evaluation, is forgotten with the rest and said again.
            let metrics = self.folder.with_file_name("metrics.jsonl");
            let before = read_metrics(metrics).unwrap_or_default().remove(&step);
            let mut before = before.unwrap_or_default();
            before.retain(|name, _| !numbers.contains_key(name));
            if !before.is_empty() {
                record(&mut opened, &numbers_of(step, &before).0)?;
            }
            self.file = Some(opened);
        }
        Ok(self.file.as_mut().expect("it was opened above"))
    }
}

impl MetricsLog for TensorBoardLog {
    fn write(&mut self, step: usize, numbers: &Numbers) -> Result<(), Error> {
        let event = numbers_of(step, numbers);
        let file = self.open(step, numbers)?;
        record(file, &event.0)
    }
}

fn numbers_of(step: usize, numbers: &Numbers) -> Message {
    let mut summary = Message::default();
    for (name, number) in numbers {
        let value = Message::default()
            .bytes(1, name.as_bytes())
            .float(2, *number as f32);
        summary = summary.bytes(1, &value.0);
    }
    event(step).bytes(5, &summary.0)
}

fn event(step: usize) -> Message {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Message::default()
        .double(1, now.as_secs_f64())
        .varint(2, step as u64)
}

fn record((file, path): &mut (File, PathBuf), bytes: &[u8]) -> Result<(), Error> {
    let length = (bytes.len() as u64).to_le_bytes();
    let parts = [
        &length[..],
        &masked(&length).to_le_bytes(),
        bytes,
        &masked(bytes).to_le_bytes(),
    ];
    // At once, so that a reader sees whole records.
    file.write_all(&parts.concat())
        .map_err(Error::file("write", &*path))
}

/// A protobuf message under construction.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn push_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.push_varint(field << 3 | kind);
    }

    fn varint(mut self, field: u64, value: u64) -> Self {
        self.key(field, 0);
        self.push_varint(value);
        self
    }

    fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.push_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }
}

/// Returns the checksum that stands in records.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's CRC, bit by bit: records are short.
fn crc32c(bytes: &[u8]) -> u32 {
    let add = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let carry = 0_u32.wrapping_sub(crc & 1);
            crc >> 1 ^ 0x82f6_3b78 & carry
        })
    };
    !bytes.iter().fold(!0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_as_published() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn records_are_whole_and_a_log_that_is_opened_again_has_another_file() {
        let run = tempfile::tempdir().unwrap();
        for step in [0, 7] {
            let mut log = TensorBoardLog::new(run.path());
            log.write(step, &Numbers::from([("loss".to_owned(), 0.5)]))
                .unwrap();
        }
        let files: Vec<_> = std::fs::read_dir(run.path().join("tensorboard"))
            .unwrap()
            .collect();
        assert_eq!(files.len(), 2);
        for file in files {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            let (mut rest, mut records) = (&bytes[..], 0);
            while !rest.is_empty() {
                let (length, after) = rest.split_at(8);
                let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
                let data = &after[4..4 + length];
                let crc = u32::from_le_bytes(after[4 + length..8 + length].try_into().unwrap());
                assert_eq!(crc, masked(data));
                rest = &after[8 + length..];
                records += 1;
            }
            assert_eq!(records, 3);
        }
    }
}
