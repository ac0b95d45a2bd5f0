//! How many files and sockets the system lets this process have.

/// Kept free for files: the database, weights, results, downloads.
const FOR_FILES: u64 = 256;

/// Raises the limit on open files as far as this process may, and returns how many of them connections can be.
/// Systems start programs with few (1,024) for the sake of old ones.
#[cfg(unix)]
pub(super) fn for_connections() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::warn!(%error, "could not raise the limit on open files"),
        }
    }
    let files = limit.current.unwrap_or(u64::MAX);
    usize::try_from(beside_files(files)).unwrap_or(usize::MAX)
}

#[cfg(not(unix))]
pub(super) fn for_connections() -> usize {
    usize::MAX
}

/// Most of many, and half of few.
#[cfg(unix)]
fn beside_files(limit: u64) -> u64 {
    limit.saturating_sub(FOR_FILES).max(limit / 2).max(1)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn files_have_room_beside_connections() {
        assert_eq!(beside_files(1024), 768);
        assert_eq!(beside_files(256), 128);
        assert_eq!(beside_files(1), 1);
        assert_eq!(beside_files(u64::MAX), u64::MAX - FOR_FILES);
    }
}
