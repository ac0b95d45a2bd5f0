//! What only the operating system knows. Where we do not ask it, nothing is known.

use std::path::Path;

/// Returns how many columns the terminal on stdout has; `None` if there is no terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    width(&std::io::stdout())
}

/// Returns how many columns the terminal on stderr has; `None` if there is no terminal.
pub(crate) fn stderr_width() -> Option<usize> {
    width(&std::io::stderr())
}

#[cfg(unix)]
fn width(stream: &(impl std::io::IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(stream).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

#[cfg(not(unix))]
fn width(_: &impl std::io::IsTerminal) -> Option<usize> {
    None
}

/// Returns the name of this machine.
#[cfg(unix)]
pub(crate) fn host() -> Option<String> {
    let name = rustix::system::uname();
    Some(name.nodename().to_string_lossy().into_owned())
}

#[cfg(not(unix))]
pub(crate) fn host() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// Returns how much may be written where a folder is.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}
