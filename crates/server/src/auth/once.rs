//! Tokens that log in once, for whoever reads them on a terminal of this machine.

use std::collections::VecDeque;
use std::sync::Mutex;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::{SignedDuration, Timestamp};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::Owner;
use crate::lock::lock;

/// How long a token waits to be used.
const LIFETIME: SignedDuration = SignedDuration::from_hours(12);
/// How many may wait. The oldest make room.
const TOKENS: usize = 256;

/// Tokens that nobody has used yet, as their hashes. They end with the process.
#[derive(Debug, Default)]
pub(super) struct OneTime {
    waiting: Mutex<VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    hash: [u8; 32],
    owner: Owner,
    expires: Timestamp,
}

impl OneTime {
    /// Makes a token, if the system has random numbers.
    pub(super) fn issue(&self, owner: Owner, now: Timestamp) -> Option<String> {
        let mut bytes = [0_u8; 24];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let token = BASE64.encode(bytes);
        let mut waiting = lock(&self.waiting);
        while waiting.len() >= TOKENS {
            waiting.pop_front();
        }
        waiting.push_back(Waiting {
            hash: hash(&token),
            owner,
            expires: now.saturating_add(LIFETIME).unwrap_or(Timestamp::MAX),
        });
        Some(token)
    }

    /// Returns whose token this is, once.
    pub(super) fn redeem(&self, token: &str, now: Timestamp) -> Option<Owner> {
        // What is compared are hashes, whose bytes cannot be chosen one by one.
        let hash = hash(token);
        let mut waiting = lock(&self.waiting);
        waiting.retain(|token| token.expires > now);
        let found = waiting.iter().position(|token| token.hash == hash)?;
        waiting.remove(found).map(|token| token.owner)
    }

    /// Takes none of an owner's tokens any more.
    pub(super) fn forget(&self, owner: Owner) {
        lock(&self.waiting).retain(|token| token.owner != owner);
    }
}

fn hash(token: &str) -> [u8; 32] {
    let digest = digest(&SHA256, token.as_bytes());
    let hash = digest.as_ref().try_into();
    hash.expect("a SHA-256 digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: i64) -> Timestamp {
        Timestamp::from_second(number).unwrap()
    }

    #[test]
    fn a_token_is_good_once_and_for_a_while() {
        let (tokens, owner) = (OneTime::default(), Owner::of_key(b"tml-one"));
        let token = tokens.issue(owner, second(0)).unwrap();
        assert_eq!(tokens.redeem("", second(1)), None);
        assert_eq!(tokens.redeem(&token, second(1)), Some(owner));
        assert_eq!(tokens.redeem(&token, second(1)), None);
        let late = tokens.issue(owner, second(0)).unwrap();
        assert_eq!(tokens.redeem(&late, second(12 * 3600)), None);
    }

    #[test]
    fn only_so_many_wait() {
        let (tokens, owner) = (OneTime::default(), Owner::of_key(b"tml-one"));
        let first = tokens.issue(owner, second(0)).unwrap();
        for _ in 0..TOKENS {
            tokens.issue(owner, second(0)).unwrap();
        }
        assert_eq!(tokens.redeem(&first, second(1)), None);
        assert_eq!(lock(&tokens.waiting).len(), TOKENS);
    }
}
