//! What only the operating system knows. Where we do not ask it, nothing is known.

use std::path::Path;

/// Returns how many columns the terminal on stdout has; `None` if there is no terminal.
#[cfg(unix)]
pub(crate) fn terminal_width() -> Option<usize> {
    use std::io::IsTerminal;
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(&stdout).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

#[cfg(not(unix))]
pub(crate) fn terminal_width() -> Option<usize> {
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
