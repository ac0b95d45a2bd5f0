//! Telling weights apart, at the speed of memory.
//!
//! Four lanes of 64 bits take in a word each, by turns. It notices other files and other formats; it
//! does not withstand somebody who makes weights to fool it.

const LANES: usize = 4;
const WORD: usize = size_of::<u64>();
/// Odd, with bits all over: the golden ratio's.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Debug)]
pub(crate) struct Digest {
    lanes: [u64; LANES],
}

impl Default for Digest {
    fn default() -> Self {
        Self {
            lanes: [1, 2, 3, 4].map(|lane: u64| lane.wrapping_mul(FACTOR)),
        }
    }
}

/// Multiplies to 128 bits and joins the halves, so that every bit reaches all others.
fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from((state ^ word).wrapping_add(FACTOR)) * u128::from(FACTOR);
    (product as u64) ^ (product >> 64) as u64 ^ state.rotate_left(23)
}

impl Digest {
    pub(crate) fn number(&mut self, number: u64) {
        self.lanes[0] = mix(self.lanes[0], number);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Takes bytes in, and how many there are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        let mut rows = bytes.chunks_exact(LANES * WORD);
        for row in &mut rows {
            let (words, _) = row.as_chunks::<WORD>();
            for (lane, word) in self.lanes.iter_mut().zip(words) {
                *lane = mix(*lane, u64::from_le_bytes(*word));
            }
        }
        for &byte in rows.remainder() {
            self.number(u64::from(byte));
        }
    }

    pub(crate) fn finish(self) -> u64 {
        mix(self.lanes.into_iter().fold(0, mix), 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn digest(bytes: &[u8]) -> u64 {
        let mut digest = Digest::default();
        digest.bytes(bytes);
        digest.finish()
    }

    #[test]
    fn every_bit_and_the_length_count() {
        let mut bytes = vec![0; 71];
        let mut seen = HashSet::from([digest(&bytes), digest(&bytes[..70]), digest(&[])]);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(digest(&bytes)), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn it_stays_the_same_from_one_version_to_the_next() {
        // Runs in data folders are compared with it.
        assert_eq!(
            digest(&(0..=255).collect::<Vec<_>>()),
            7_677_096_795_110_060_468
        );
    }
}
