//! Episodes for people to read: the best and the worst of each step.

use super::episode::Episode;
use super::rollout::Group;
use crate::Error;
use crate::data::{open_to_add, parse_jsonl};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// The file of a run folder.
const FILE: &str = "transcripts.jsonl";

/// Drops what is there about steps from `step` on, since they are done again.
pub(super) fn drop_from(folder: &Path, step: usize) -> Result<(), Error> {
    let path = folder.join(FILE);
    if !path.exists() {
        return Ok(());
    }
    let (_, text) = open_to_add(&path)?;
    let rows: Vec<Value> = parse_jsonl(&text, &path)?;
    let is_kept = |row: &&Value| {
        row["step"]
            .as_u64()
            .is_some_and(|found| found < step as u64)
    };
    let kept: String = rows
        .iter()
        .filter(is_kept)
        .map(|row| format!("{row}\n"))
        .collect();
    let beside = path.with_extension("part");
    let written = std::fs::write(&beside, kept).and_then(|()| std::fs::rename(&beside, &path));
    written.map_err(Error::file("write", &path))
}

/// Adds the `count` best and the `count` worst episodes of a step, as far as they have a transcript.
pub(super) fn write(
    folder: &Path,
    step: usize,
    groups: &[Group],
    count: usize,
) -> Result<(), Error> {
    let told = |episode: &&Episode| !episode.messages.is_empty();
    let mut episodes: Vec<&Episode> = groups.iter().flatten().filter(told).collect();
    if count == 0 || episodes.is_empty() {
        return Ok(());
    }
    episodes.sort_by(|a, b| b.reward.total_cmp(&a.reward));
    let worst = episodes.len().saturating_sub(count).max(count);
    let chosen = episodes
        .iter()
        .take(count)
        .chain(episodes.iter().skip(worst));
    let line = |episode: &&Episode| {
        let row = json!({
            "step": step,
            "reward": episode.reward,
            "turns": episode.turns,
            "cut_short": episode.cut_short,
            "metrics": episode.metrics,
            "messages": episode.messages,
        });
        format!("{row}\n")
    };
    let lines: String = chosen.map(line).collect();
    let path = folder.join(FILE);
    let (mut file, _) = open_to_add(&path)?;
    let written = file.write_all(lines.as_bytes());
    written.map_err(Error::file("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_chat::Message;

    #[test]
    fn the_best_and_the_worst_are_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let episode = |reward: f64| Episode {
            reward,
            messages: vec![Message::user("Hi")],
            ..Episode::default()
        };
        let rewards = || {
            let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
            let rows: Vec<Value> = parse_jsonl(&text, Path::new(FILE)).unwrap();
            let reward = |row: &Value| row["reward"].as_f64().unwrap();
            rows.iter().map(reward).collect::<Vec<_>>()
        };
        let groups = [vec![episode(2.0), episode(1.0)], vec![episode(3.0)]];
        write(folder.path(), 0, &groups, 1).unwrap();
        assert_eq!(rewards(), [3.0, 1.0]);
        // One that is both is there once, and one without a transcript is not.
        let groups = [vec![episode(5.0), Episode::default()]];
        write(folder.path(), 1, &groups, 1).unwrap();
        assert_eq!(rewards(), [3.0, 1.0, 5.0]);
        drop_from(folder.path(), 1).unwrap();
        assert_eq!(rewards(), [3.0, 1.0]);
    }
}
