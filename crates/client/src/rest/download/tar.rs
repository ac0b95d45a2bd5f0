//! Reading tar archives, with bounds on everything.
//!
//! Only what checkpoints need: files and folders, with long names in either of the two forms
//! that writers use. An extension header is read into memory, so its size is bounded; libraries
//! for the general case trust the size that the archive states.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// More than any path needs.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    /// A link, a device, or a file with holes.
    Other,
}

/// An entry, whose contents come next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) size: u64,
}

/// An archive that is read from front to back. Reading from it reads the current entry.
pub(super) struct Reader<R> {
    input: R,
    /// How much of the current entry was not read yet.
    left: u64,
    /// What fills up its last block.
    padding: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            left: 0,
            padding: 0,
        }
    }

    /// Goes to the next entry, or returns `None` at the end of the archive.
    pub(super) fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut long_name = None;
        let mut extended = Extension::default();
        loop {
            self.skip_current()?;
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            let size = number(&header[124..136])?;
            self.enter(size);
            match header[156] {
                b'L' => long_name = Some(text(until_nul(&self.read_extension()?))?),
                b'x' => extended = Extension::parse(&self.read_extension()?)?,
                // The long target of a link, and settings for the whole archive.
                b'K' | b'g' => {}
                flag => {
                    let size = extended.size.unwrap_or(size);
                    self.enter(size);
                    let name = match extended.path.or(long_name) {
                        Some(name) => name,
                        None => short_name(&header)?,
                    };
                    let kind = match flag {
                        _ if extended.has_holes => Kind::Other,
                        b'5' => Kind::Folder,
                        // The oldest archives mark folders by their names only.
                        0 | b'0' if name.ends_with('/') => Kind::Folder,
                        0 | b'0' | b'7' => Kind::File,
                        _ => Kind::Other,
                    };
                    return Ok(Some(Entry { name, kind, size }));
                }
            }
        }
    }

    /// Reads what is behind the last entry, so that a checksum at the very end is checked.
    pub(super) fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self.input, &mut io::sink()).map(drop)
    }

    fn enter(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn skip_current(&mut self) -> io::Result<()> {
        let rest = self.left.saturating_add(self.padding);
        let skipped = io::copy(&mut (&mut self.input).take(rest), &mut io::sink())?;
        if skipped < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.enter(0);
        Ok(())
    }

    fn read_header(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut header = [0; BLOCK];
        self.input.read_exact(&mut header)?;
        if header == [0; BLOCK] {
            return Ok(None);
        }
        let stated = number(&header[148..156])?;
        let in_checksum = |(at, byte): (usize, &u8)| {
            let own_field = (148..156).contains(&at);
            u64::from(if own_field { b' ' } else { *byte })
        };
        let sum: u64 = header.iter().enumerate().map(in_checksum).sum();
        if sum != stated {
            return Err(malformed("a header has the wrong checksum"));
        }
        Ok(Some(header))
    }

    fn read_extension(&mut self) -> io::Result<Vec<u8>> {
        if self.left > MAX_EXTENSION_BYTES {
            return Err(malformed("an extended header is too long"));
        }
        let size = self.left;
        let mut data = Vec::new();
        self.read_to_end(&mut data)?;
        if (data.len() as u64) < size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(data)
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.min(buffer.len() as u64) as usize;
        let count = self.input.read(&mut buffer[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

/// What an extended header says about the next entry.
#[derive(Debug, Default)]
struct Extension {
    path: Option<String>,
    size: Option<u64>,
    has_holes: bool,
}

impl Extension {
    /// Reads records of the form `12 path=abc\n`, each with its own length in front.
    fn parse(mut data: &[u8]) -> io::Result<Self> {
        let bad = || malformed("an extended header is not a list of records");
        let mut extension = Self::default();
        while !data.is_empty() {
            let space = data.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
            let length = std::str::from_utf8(&data[..space]).ok();
            let length: usize = length.and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            let record = data.get(space + 1..length).ok_or_else(bad)?;
            let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(bad)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => extension.path = Some(text(value)?),
                b"size" => extension.size = Some(text(value)?.parse().map_err(|_| bad())?),
                key if key.starts_with(b"GNU.sparse.") => extension.has_holes = true,
                _ => {}
            }
            data = &data[length..];
        }
        Ok(extension)
    }
}

fn short_name(header: &[u8; BLOCK]) -> io::Result<String> {
    let name = text(until_nul(&header[..100]))?;
    // Only the standard form has a prefix there; the older GNU form keeps times in that place.
    let prefix = match &header[257..263] {
        b"ustar\0" => text(until_nul(&header[345..500]))?,
        _ => String::new(),
    };
    Ok(if prefix.is_empty() {
        name
    } else {
        format!("{prefix}/{name}")
    })
}

/// Reads a number in octal digits, or in binary if its first bit is set.
fn number(field: &[u8]) -> io::Result<u64> {
    let bad = || malformed("a header has a bad number");
    if field[0] & 0x80 != 0 {
        let digits = field.iter().enumerate();
        return digits
            .map(|(at, byte)| if at == 0 { byte & 0x7f } else { *byte })
            .try_fold(0_u64, |sum, byte| {
                sum.checked_mul(256)?.checked_add(u64::from(byte))
            })
            .ok_or_else(bad);
    }
    let digits = text(until_nul(field))?;
    match digits.trim_matches(' ') {
        "" => Ok(0),
        digits => u64::from_str_radix(digits, 8).map_err(|_| bad()),
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn text(bytes: &[u8]) -> io::Result<String> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned)
        .map_err(|_| malformed("a name is not UTF-8"))
}

fn malformed(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
