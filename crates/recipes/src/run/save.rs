//! When a run saves its weights.

use std::time::Duration;

/// What becomes of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Save {
    /// It stays.
    Keep,
    /// It is there for a crash: the next one replaces it.
    Replace,
}

/// Returns whether something that happens every so many steps happens after `steps`; 0 is never.
pub(crate) fn due(every: usize, steps: usize) -> bool {
    every > 0 && steps.is_multiple_of(every)
}

/// Returns whether a checkpoint is due after `steps`, when `unsaved` steps have taken the time that passed since
/// the last one.
pub(super) fn due_now(
    every: usize,
    steps: usize,
    passed: Duration,
    unsaved: usize,
    seconds: f64,
) -> Option<Save> {
    if due(every, steps) {
        return Some(Save::Keep);
    }
    // One more step would be lost with the others, so it has to be before the limit, too.
    let passed = passed.as_secs_f64();
    let after_next = passed + passed / unsaved.max(1) as f64;
    (seconds > 0.0 && after_next >= seconds).then_some(Save::Replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_comes_before_a_minute_of_work_would_be_lost() {
        let due = |seconds, unsaved| due_now(50, 7, Duration::from_secs(seconds), unsaved, 60.0);
        // Steps of a second, of 20 and of 40.
        assert_eq!(due(58, 58), None);
        assert_eq!(due(59, 59), Some(Save::Replace));
        assert_eq!(due(20, 1), None);
        assert_eq!(due(40, 2), Some(Save::Replace));
        assert_eq!(due(40, 1), Some(Save::Replace));
        let long = Duration::from_secs(1000);
        assert_eq!(due_now(0, 7, long, 3, 0.0), None, "never");
        assert_eq!(due_now(7, 7, long, 3, 60.0), Some(Save::Keep));
    }
}
