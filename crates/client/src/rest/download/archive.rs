//! Unpacking the archives that older servers give instead of single files.

use super::Downloaded;
use super::error::{DownloadError, file_error};
use super::place::{Place, prepare_folder};
use super::tar::{Kind, Reader};
use flate2::bufread::MultiGzDecoder;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// How much may come out of an archive.
///
/// A small archive can hold a huge file, since a few bytes can stand for a thousand zeros.
/// Weights that were never trained do consist of zeros, so the limit is on what comes out, not
/// on how small it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractLimits {
    /// The most bytes, all files together. The default is 256 GiB.
    pub max_total_bytes: u64,
    /// The most files and folders. The default is 100,000.
    pub max_entries: u64,
}

impl Default for ExtractLimits {
    fn default() -> Self {
        Self {
            max_total_bytes: 256 << 30,
            max_entries: 100_000,
        }
    }
}

/// Unpacks a tar archive, compressed with gzip or not, into a folder.
///
/// Only files and folders are unpacked, under plain relative names. Anything else is an error:
/// links, devices, names that lead out of the folder. Permissions and owners are not taken over.
/// Files that exist are replaced. After an error, the files before it stay.
///
/// Dropping the future does not stop the work.
///
/// # Errors
/// If the archive is broken or truncated, holds something other than files and folders, exceeds
/// the limits, or cannot be read or written.
pub async fn extract_archive(
    archive: impl AsRef<Path>,
    folder: impl AsRef<Path>,
    limits: &ExtractLimits,
) -> Result<Downloaded, DownloadError> {
    let archive = archive.as_ref().to_owned();
    let folder = folder.as_ref().to_owned();
    let limits = limits.clone();
    let work = tokio::task::spawn_blocking(move || extract(&archive, &folder, &limits));
    match work.await {
        Ok(extracted) => extracted,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

fn extract(
    archive: &Path,
    folder: &Path,
    limits: &ExtractLimits,
) -> Result<Downloaded, DownloadError> {
    let bad = |error: io::Error| DownloadError::BadArchive {
        path: archive.to_owned(),
        reason: match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
            _ => error.to_string(),
        },
    };
    let refused = |reason: String| DownloadError::BadArchive {
        path: archive.to_owned(),
        reason,
    };
    let file = File::open(archive).map_err(file_error("open", archive))?;
    let input = decompressed(BufReader::new(file)).map_err(file_error("read", archive))?;
    let mut entries = Reader::new(Limited {
        input,
        left: limits.max_total_bytes,
        limit: limits.max_total_bytes,
    });
    fs::create_dir_all(folder).map_err(file_error("create", folder))?;

    let mut extracted = Downloaded::default();
    let mut count = 0;
    while let Some(entry) = entries.next_entry().map_err(bad)? {
        count += 1;
        if count > limits.max_entries {
            let limit = limits.max_entries;
            return Err(refused(format!("it has more than {limit} entries")));
        }
        // Archives of a whole folder call it `.` and what is in it `./name`.
        let name = entry.name.trim_start_matches("./").trim_end_matches('/');
        match entry.kind {
            Kind::Folder if name.is_empty() || name == "." => {}
            Kind::Folder => drop(prepare_folder(folder, name)?),
            Kind::File => {
                let place = Place::prepare(folder, name)?;
                let written = write(&mut entries, &place, entry.size);
                let written = written.map_err(|error| match error {
                    Fault::Archive(error) => bad(error),
                    Fault::File(error) => file_error("write", &place.path)(error),
                });
                if written.is_err() {
                    let _ = fs::remove_file(&place.partial); // the first error is the one to report
                }
                written?;
                extracted.files.insert(name.to_owned(), entry.size);
            }
            Kind::Other => {
                let name = &entry.name;
                return Err(refused(format!("{name:?} is neither a file nor a folder")));
            }
        }
    }
    entries.finish().map_err(bad)?;
    Ok(extracted)
}

enum Fault {
    Archive(io::Error),
    File(io::Error),
}

fn write(entry: &mut impl Read, place: &Place, size: u64) -> Result<(), Fault> {
    let mut file = File::create(&place.partial).map_err(Fault::File)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut written = 0;
    loop {
        let count = entry.read(&mut buffer).map_err(Fault::Archive)?;
        if count == 0 {
            break;
        }
        io::Write::write_all(&mut file, &buffer[..count]).map_err(Fault::File)?;
        written += count as u64;
    }
    if written < size {
        return Err(Fault::Archive(io::ErrorKind::UnexpectedEof.into()));
    }
    file.sync_all().map_err(Fault::File)?;
    fs::rename(&place.partial, &place.path).map_err(Fault::File)
}

fn decompressed(mut input: BufReader<File>) -> io::Result<Box<dyn Read>> {
    let is_gzip = input.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_gzip {
        Box::new(MultiGzDecoder::new(input))
    } else {
        Box::new(input)
    })
}

/// Fails when more than a limit is read, where `Take` would pretend that the input ends.
struct Limited<R> {
    input: R,
    left: u64,
    limit: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => {
                let reason = format!("it unpacks to more than {} bytes", self.limit);
                return Err(io::Error::other(reason));
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
