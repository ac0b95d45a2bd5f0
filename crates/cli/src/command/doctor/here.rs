//! What matters on this machine: the processor, the memory, the data folder, its disk and the models.

use std::io;
use std::path::Path;

use tinkrs::auth::{CredentialPolicy, resolve_from_env};
use tinkrs_server::{Settings, data};

use super::{Check, Status};
use crate::command::models;
use crate::human::{counted, size};
use crate::{holder, system};

pub(super) const DISK: &str = "disk";

/// Less room than this is used up by a few checkpoints.
const LOW_DISK_BYTES: u64 = 2 << 30;
const KEEP_OUT: &str = "`chmod 700` on it keeps them out";
/// Less memory than this is not enough for any model but the built-in one.
const LOW_MEMORY_BYTES: u64 = 1 << 30;

/// Checks everything about this machine.
pub(super) async fn checks(folder: &Path) -> Vec<Check> {
    let limit = Settings::new(folder).memory_limit();
    vec![
        processor(),
        memory(limit),
        data_folder(folder).await,
        disk(folder),
        models(limit),
        hosted_key(),
    ]
}

/// Checks what may be wrong while a server has the folder, and can be looked at often.
pub(super) fn while_served(folder: &Path, memory_limit: u64) -> Vec<Check> {
    let mut checks = vec![processor(), memory(memory_limit)];
    if is_open_to_others(folder) {
        checks.push(
            Check::new(
                "data folder",
                Status::Warning,
                "other users of this machine can enter it",
            )
            .hint(KEEP_OUT),
        );
    }
    checks
}

/// Says whether the hosted service could be used, too.
fn hosted_key() -> Check {
    let note = |detail| Check::new("hosted key", Status::Note, detail);
    match resolve_from_env(None, CredentialPolicy::Any) {
        Ok(_) => note("there is one, which this machine does not need"),
        Err(_) => note("none, and none is needed on this machine")
            .hint("for the hosted service, `tinkrs auth login` stores one"),
    }
}

fn processor() -> Check {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = counted(threads as u64, "thread");
    let kind = std::env::consts::ARCH;
    let detail = format!(
        "{kind} with {}, {threads}",
        tinkrs_engine::kernel_instructions()
    );
    if tinkrs_engine::has_fast_kernels() {
        return Check::new("processor", Status::Ok, detail);
    }
    Check::new("processor", Status::Warning, detail)
        .hint("everything works with the same results, but several times slower")
}

fn memory(limit: u64) -> Check {
    let detail = format!(
        "{} for models and training, unless `--memory` says otherwise",
        size(limit)
    );
    if limit < LOW_MEMORY_BYTES {
        Check::new("memory", Status::Warning, detail).hint(
            "only small models fit: close other programs, or raise the limit of the container",
        )
    } else {
        Check::new("memory", Status::Ok, detail)
    }
}

/// Checks that the data folder can be used, or can be made.
async fn data_folder(folder: &Path) -> Check {
    let check = |status, detail: String| {
        Check::new(
            "data folder",
            status,
            format!("{}: {detail}", folder.display()),
        )
    };
    if !folder.exists() {
        let parent = folder
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        return match tempfile::tempfile_in(nearest_folder(parent.unwrap_or(Path::new(".")))) {
            Ok(_) => check(Status::Ok, "made when it is needed".to_owned()),
            Err(error) => check(Status::Failed, format!("cannot be made: {error}"))
                .hint("name a folder that you may write to with `--data-dir`"),
        };
    }
    if let Err(error) = writable(folder) {
        return check(Status::Failed, format!("cannot be written: {error}"))
            .hint("make it yours, or name another folder with `--data-dir`");
    }
    // The process that has it checks it as it uses it.
    if let Some(holder) = holder::find(folder).await {
        let detail = format!("used by process {}, `{}`", holder.pid, holder.command);
        return check(Status::Ok, detail);
    }
    let checked = tempfile::tempdir().map_err(|error| error.to_string());
    let checked = checked.and_then(|scratch| {
        let checked = data::check_database(folder, scratch.path());
        checked.map_err(|error| crate::output::one_line(&anyhow::Error::new(error)))
    });
    let count = match checked {
        Ok(count) => counted(count as u64, "checkpoint"),
        Err(problem) => {
            return check(Status::Failed, problem).hint(
                "`tinkrs data check` says more, `tinkrs data repair` mends what can be mended",
            );
        }
    };
    if is_open_to_others(folder) {
        return check(
            Status::Warning,
            format!("{count}; other users can enter it"),
        )
        .hint(KEEP_OUT);
    }
    check(Status::Ok, format!("{count}, for you alone"))
}

/// Returns the nearest folder on the way to a path that is there.
fn nearest_folder(path: &Path) -> &Path {
    let mut folders = path.ancestors().filter(|folder| folder.is_dir());
    folders.next().unwrap_or(Path::new("."))
}

fn writable(folder: &Path) -> io::Result<()> {
    tempfile::tempfile_in(folder).map(drop)
}

#[cfg(unix)]
fn is_open_to_others(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(folder).is_ok_and(|folder| folder.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &Path) -> bool {
    false
}

/// Checks the room where the data folder is, or will be.
pub(super) fn disk(folder: &Path) -> Check {
    match system::free_bytes(nearest_folder(folder)) {
        Some(bytes) => room(bytes),
        None => Check::new(DISK, Status::Skipped, "this system does not say"),
    }
}

fn room(free_bytes: u64) -> Check {
    let detail = format!("{} free for the data folder", size(free_bytes));
    if free_bytes < LOW_DISK_BYTES {
        Check::new(DISK, Status::Warning, detail)
            .hint("make room before downloading or training: checkpoints are large")
    } else {
        Check::new(DISK, Status::Ok, detail)
    }
}

/// Checks the models of this machine, and whether they fit into memory.
fn models(memory: u64) -> Check {
    let found = match models::on_this_machine() {
        Ok(found) => found,
        Err(error) => {
            return Check::new("models", Status::Failed, crate::output::one_line(&error));
        }
    };
    let names = |wanted: &dyn Fn(&models::Found) -> bool| {
        let names = found.iter().filter(|model| wanted(model));
        names.map(|model| model.name.as_str()).collect::<Vec<_>>()
    };
    let too_large = names(&|model| model.size_bytes.is_some_and(|bytes| bytes > memory));
    let broken = names(&|model| model.problem.is_some());
    let usable = names(&|model| model.problem.is_none());
    let mut detail = format!(
        "{}: {}",
        counted(usable.len() as u64, "model"),
        usable.join(", ")
    );
    if !broken.is_empty() {
        detail += &format!("; not usable: {}", broken.join(", "));
    }
    if !too_large.is_empty() {
        detail += &format!("; larger than the memory: {}", too_large.join(", "));
    }
    if broken.is_empty() && too_large.is_empty() {
        return Check::new("models", Status::Ok, detail);
    }
    Check::new("models", Status::Warning, detail).hint("`tinkrs models list` says why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_is_wrong_while_a_server_runs_is_told_with_advice() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let names = |mode, memory| {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let checks = while_served(folder.path(), memory).into_iter();
            let wrong = checks.filter(|check| check.status == Status::Warning);
            // How fast the processor is says nothing of this code.
            let wrong = wrong.filter(|check| check.name != "processor");
            wrong
                .map(|check| (check.name, check.hint.is_some()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0o700, LOW_MEMORY_BYTES), []);
        assert_eq!(names(0o700, 0), [("memory", true)]);
        assert_eq!(names(0o755, LOW_MEMORY_BYTES), [("data folder", true)]);
    }

    #[test]
    fn little_room_is_a_warning_with_advice() {
        assert_eq!(room(LOW_DISK_BYTES).status, Status::Ok);
        let low = room(1 << 20);
        assert_eq!(low.status, Status::Warning);
        assert!(low.hint.is_some());
        assert_eq!(memory(1 << 20).status, Status::Warning);
    }

    #[tokio::test]
    async fn a_data_folder_is_made_when_it_is_needed_if_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a/b");
        assert_eq!(data_folder(&inside).await.status, Status::Ok);
        assert!(!inside.exists(), "looking makes nothing");
        std::fs::write(
            folder.path().join("tinkrs.db"),
            "this is no database at all",
        )
        .unwrap();
        let check = data_folder(folder.path()).await;
        assert_eq!(check.status, Status::Failed, "{check:?}");
        assert!(check.hint.is_some());
    }
}
