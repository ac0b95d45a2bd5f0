//! How much memory a server uses by default: a share of what the machine, its control group or its
//! address-space limit allows, whichever is least.
//!
//! The rest is for what the budget does not count: other programs, the page cache that the data folder lives
//! in, and memory that the allocator holds on to.

use std::fs;
use std::path::{Path, PathBuf};

/// What is assumed where nothing can be found out.
const UNKNOWN: u64 = 4 << 30;

/// Returns the budget of a server that was given none.
pub(crate) fn default_limit() -> u64 {
    let read = |path: &Path| fs::read_to_string(path).ok();
    allowed(&read).unwrap_or(UNKNOWN)
}

/// Decides from the files of a Linux system, of which some may be missing.
fn allowed(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let read_at = |path: &str| read(Path::new(path));
    let available = read_at("/proc/meminfo").and_then(|text| available(&text));
    let groups = read_at("/proc/self/cgroup").unwrap_or_default();
    let group = group_files(&groups)
        .into_iter()
        .filter_map(|path| read(&path)?.trim().parse::<u64>().ok())
        .min();
    let physical = available.into_iter().chain(group).min();
    let physical = physical.map(|bytes| bytes / 4 * 3);
    // Addresses are also used up by stacks, by files that are mapped, and by what the allocator sets aside
    // for each thread, none of which takes memory before it is touched.
    let address_space = read_at("/proc/self/limits").and_then(|text| address_space(&text));
    let address_space = address_space.map(|limit| {
        let used = read_at("/proc/self/status").and_then(|text| in_kibibytes(&text, "VmSize:"));
        limit.saturating_sub(used.unwrap_or(0)) / 2
    });
    physical.into_iter().chain(address_space).min()
}

/// Returns what programs can have without swapping, or all memory on systems that do not tell.
fn available(meminfo: &str) -> Option<u64> {
    in_kibibytes(meminfo, "MemAvailable:").or_else(|| in_kibibytes(meminfo, "MemTotal:"))
}

/// Reads a line such as `MemTotal:  16384 kB`.
fn in_kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// Returns the soft limit of the address space, in bytes.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the files with the limits of this process's control group and of those above it: `0::/a/b` in
/// version 2, `7:memory:/a/b` in version 1. A group without a limit says `max`, or a huge number.
fn group_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(
            group
                .ancestors()
                .map(|group| Path::new(root).join(group).join(file)),
        );
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn limit_of(files: &[(&str, &str)]) -> Option<u64> {
        allowed(&|path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    const MEMINFO: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n",
    );

    #[test]
    fn the_machine_gives_three_quarters_of_what_is_available() {
        assert_eq!(limit_of(&[MEMINFO]), Some(6 * GIB));
        assert_eq!(
            limit_of(&[("/proc/meminfo", "MemTotal: 4194304 kB\n")]),
            Some(3 * GIB)
        );
        assert_eq!(limit_of(&[("/proc/meminfo", "nonsense")]), None);
        assert_eq!(limit_of(&[]), None);
    }

    #[test]
    fn the_narrowest_control_group_counts() {
        let version_2 = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/pod/server\n"),
            ("/sys/fs/cgroup/pod/server/memory.max", "max\n"),
            ("/sys/fs/cgroup/pod/memory.max", "4294967296\n"),
        ];
        assert_eq!(limit_of(&version_2), Some(3 * GIB));
        let version_1 = [
            MEMINFO,
            ("/proc/self/cgroup", "12:cpu:/x\n7:memory:/pod\n"),
            (
                "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes",
                "2147483648\n",
            ),
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(limit_of(&version_1), Some(3 * GIB / 2));
        // In a container the group's own files are at the root.
        let container = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "1073741824\n"),
        ];
        assert_eq!(limit_of(&container), Some(GIB / 4 * 3));
    }

    #[test]
    fn half_of_the_addresses_that_are_left_may_be_used() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max address space         3221225472           unlimited            bytes     \n";
        let status = "VmPeak:\t 2097152 kB\nVmSize:\t 1048576 kB\n";
        let files = [
            MEMINFO,
            ("/proc/self/limits", limits),
            ("/proc/self/status", status),
        ];
        assert_eq!(limit_of(&files), Some(GIB));
        let unlimited = [
            MEMINFO,
            (
                "/proc/self/limits",
                "Max address space         unlimited            unlimited            bytes\n",
            ),
        ];
        assert_eq!(limit_of(&unlimited), Some(6 * GIB));
    }

    #[test]
    fn this_machine_has_some_memory() {
        assert!(default_limit() > 0);
    }
}
