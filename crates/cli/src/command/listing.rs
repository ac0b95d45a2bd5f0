//! Listings that come in pages.

use std::future::Future;

use crate::context::Context;
use crate::human::counted;
use crate::status_line::StatusLine;

/// How much of a listing to show
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Most rows to show; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u64,
}

/// The part of a listing that was asked for.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    /// How many there are on the server.
    pub(crate) total: u64,
}

/// Fetches up to `limit` items, or all if it is 0, in pages of at most `page_size`.
///
/// `fetch` takes the limit and the offset of a page and returns its items, and how many there are
/// in all if the server says so.
pub(crate) async fn fetch<T, F>(
    ctx: &Context,
    thing: &str,
    limit: u64,
    page_size: u64,
    fetch: impl Fn(u64, u64) -> F,
) -> anyhow::Result<Listed<T>>
where
    F: Future<Output = Result<(Vec<T>, Option<u64>), tinkrs::Error>>,
{
    let action = format!("list {thing}s");
    let first = if limit == 0 { page_size } else { limit };
    let (mut items, total) = ctx.ask(&action, fetch(first.min(page_size), 0)).await?;
    let total = total.unwrap_or(items.len() as u64);
    let progress = StatusLine::new(ctx);
    while let Some(size) = next_page(items.len() as u64, limit, total, page_size) {
        progress.say(|| format!("Fetching {thing}s: {} of {total}", items.len()));
        let offset = items.len() as u64;
        let (page, _) = ctx.ask(&action, fetch(size, offset)).await?;
        let is_short = (page.len() as u64) < size;
        items.extend(page);
        if is_short {
            break;
        }
    }
    Ok(Listed { items, total })
}

/// Returns the size of the next page, if there is one to ask for.
fn next_page(so_far: u64, limit: u64, total: u64, page_size: u64) -> Option<u64> {
    let target = if limit == 0 { total } else { limit.min(total) };
    let missing = target.saturating_sub(so_far).min(page_size);
    (missing > 0).then_some(missing)
}

/// Says how many there are and how many are not shown. `of` is an addition such as ` for run X`.
pub(crate) fn title(thing: &str, shown: u64, total: u64, of: &str) -> String {
    let mut title = match shown {
        0 => format!("No {thing}s found{of}"),
        _ => format!("{}{of}", counted(shown, thing)),
    };
    if total > shown {
        let hidden = total - shown;
        title.push_str(&format!(
            " ({hidden} more not shown, use --limit to see more)"
        ));
    }
    title
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_on_until_there_is_what_was_asked_for() {
        let cases = [
            ((100, 0, 250, 100), Some(100)),
            ((200, 0, 250, 100), Some(50)),
            ((250, 0, 250, 100), None),
            ((100, 120, 250, 100), Some(20)),
            ((20, 20, 250, 100), None),
            ((7, 20, 7, 100), None),
            ((8, 20, 7, 100), None),
        ];
        for ((so_far, limit, total, size), expected) in cases {
            let page = next_page(so_far, limit, total, size);
            assert_eq!(page, expected, "{so_far} of {total}, limit {limit}");
        }
    }

    #[test]
    fn a_title_counts_and_says_what_is_missing() {
        assert_eq!(title("training run", 0, 0, ""), "No training runs found");
        assert_eq!(
            title("checkpoint", 1, 1, " for run x"),
            "1 checkpoint for run x"
        );
        assert_eq!(
            title("checkpoint", 20, 25, ""),
            "20 checkpoints (5 more not shown, use --limit to see more)"
        );
    }
}
