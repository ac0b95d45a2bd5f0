//! Numbers that look random and are the same in every build, from a seed and a name.
//!
//! Weights that are made up take theirs from here; drawing tokens has a generator of its own (see
//! `sample::rng`).

/// What SplitMix64 adds to its state at each step: 2⁶⁴ divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Where an FNV-1a hash starts.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// The generator SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(state: u64) -> Self {
        Self(state)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number in `[0, 1)`: 24 bits, which fill the mantissa.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Returns a number in `[-1, 1)`.
    pub(crate) fn symmetric(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// The output function of SplitMix64: a bijection that scatters neighbouring inputs.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The FNV-1a hash of a text, started from a seed; with 0 it is the usual one.
pub(crate) fn fnv1a(seed: u64, text: &str) -> u64 {
    text.bytes().fold(seed ^ FNV_OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_algorithms() {
        let mut rng = SplitMix64::new(1234567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
        assert_eq!(fnv1a(0, "foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn fractions_stay_in_their_ranges() {
        let mut rng = SplitMix64::new(5);
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&rng.unit()));
            assert!((-1.0..1.0).contains(&rng.symmetric()));
        }
    }
}
