//! Guesses of what a sample says next, from what has been said before.
//!
//! Answers repeat their prompts: code that is edited, a document that is quoted, the names of a table. Where the last
//! tokens have occurred before, those that followed then are guessed to follow again. A step reads the guesses beside
//! the newest token, and each is worth a row of a batch that is read from memory anyway.
//!
//! A guess decides nothing. Every token is drawn from its own logits with its own random number, as without guesses;
//! rows after one that was wrong are forgotten. So a sample has the same bits with and without.

/// Tokens that must have occurred before, at most and at least.
const MATCHED: std::ops::RangeInclusive<usize> = 2..=4;

/// How many tokens of one sample are guessed.
#[derive(Debug, Default)]
pub(crate) struct Drafting {
    /// At most so many next time: as long as guesses are right there are more of them, and soon fewer once they are not.
    length: usize,
}

impl Drafting {
    /// Guesses the tokens after `prompt` and `tokens`: at most `limit`, and none where nothing occurs twice.
    pub(crate) fn guess(&self, prompt: &[u32], tokens: &[u32], limit: usize) -> Vec<u32> {
        let limit = limit.min(self.length + 1);
        if limit == 0 {
            return Vec::new();
        }
        let mut text = [prompt, tokens].concat();
        let end = text.len();
        let Some(after) = MATCHED.rev().find_map(|matched| last_match(&text, matched)) else {
            return Vec::new();
        };
        // What follows may reach the end, and goes on with the guesses themselves.
        (after..after + limit).for_each(|at| text.push(text[at]));
        text.split_off(end)
    }

    /// Learns how many of some guesses were right.
    pub(crate) fn learn(&mut self, guessed: usize, right: usize) {
        self.length = match guessed {
            0 => self.length,
            _ if right == guessed => 2 * right,
            _ => right,
        };
    }
}

/// Returns the place after the last earlier occurrence of a text's last tokens.
fn last_match(text: &[u32], matched: usize) -> Option<usize> {
    let (before, last) = text.split_at_checked(text.len().checked_sub(matched)?)?;
    // An occurrence may overlap the end, as in a text that repeats one token.
    (0..before.len())
        .rev()
        .find(|&at| &text[at..at + matched] == last)
        .map(|at| at + matched)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(text: &[u32], limit: usize) -> Vec<u32> {
        let mut drafting = Drafting::default();
        drafting.learn(8, 8);
        drafting.guess(&text[..1], &text[1..], limit)
    }

    #[test]
    fn what_followed_the_same_tokens_last_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 9, 1, 2, 4, 8, 7, 1, 2], 2), [4, 8]);
        assert_eq!(
            guess(&[5, 1, 2, 3, 9, 6, 1, 2, 4, 5, 1, 2], 1),
            [3],
            "the longer match"
        );
        assert_eq!(
            guess(&[1, 2, 3, 4, 1, 2], 9),
            [3, 4, 1, 2, 3, 4, 1, 2, 3],
            "round and round"
        );
        assert_eq!(guess(&[7, 7, 7, 7], 3), [7, 7, 7]);
    }

    #[test]
    fn nothing_is_guessed_where_nothing_occurs_twice() {
        assert!(guess(&[1, 2, 3, 4], 4).is_empty());
        assert!(
            guess(&[1, 2, 3, 1], 4).is_empty(),
            "one token is too little"
        );
        assert!(guess(&[1], 4).is_empty());
        assert!(guess(&[1, 2, 3, 1, 2], 0).is_empty());
    }

    #[test]
    fn right_guesses_lengthen_the_next_and_wrong_ones_shorten_it() {
        let text: Vec<u32> = (0..40).chain(0..4).collect();
        let mut drafting = Drafting::default();
        let mut lengths = Vec::new();
        for right in [1, 3, 2, 0, 1] {
            let guessed = drafting.guess(&[], &text, 16).len();
            lengths.push(guessed);
            drafting.learn(guessed, right.min(guessed));
        }
        assert_eq!(lengths, [1, 3, 7, 3, 1]);
    }
}
