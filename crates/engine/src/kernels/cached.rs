//! Keys and values in the numbers that caches hold them in.
//!
//! A cache in fewer bits gives back what it was given only if that has been rounded to such numbers before.
//! So a pass rounds every key and value as it computes them, in training and sampling alike, and what attention
//! reads is the same whether it comes from a cache or from the pass itself. Gradients go through the
//! rounding as if it were not there.

use super::micro::{LANES, widen_bf16};

/// Numbers that share a scale, along a head.
const GROUP: usize = 32;

/// In which numbers keys and values are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheFormat {
    /// In single precision. This is the default.
    #[default]
    F32,
    /// In bfloat16.
    Bf16,
    /// In eight bits, with a scale in bfloat16 for each 32 numbers of a head.
    Q8_0,
}

impl CacheFormat {
    /// Returns the name: `f32`, `bf16` or `q8_0`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The bytes of so many numbers of a head.
    pub(crate) fn bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => width * size_of::<f32>(),
            Self::Bf16 => width * size_of::<u16>(),
            Self::Q8_0 => width + groups(width) * size_of::<u16>(),
        }
    }

    /// Rounds a key or a value of one head to what can be held.
    pub(crate) fn round(self, head: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => head.iter_mut().for_each(|x| *x = widen_bf16(narrow(*x))),
            Self::Q8_0 => {
                for group in head.chunks_mut(GROUP) {
                    let scale = scale_of(group);
                    group
                        .iter_mut()
                        .for_each(|x| *x = f32::from(code(*x, scale)) * scale);
                }
            }
        }
    }
}

fn groups(width: usize) -> usize {
    width.div_ceil(GROUP)
}

fn narrow(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

/// The scale of a group, which 127 times is the largest of it, or nearly. Since a scale has eight significant bits and a code seven,
/// their products are exact, and what was rounded once has the same scale and codes again.
fn scale_of(group: &[f32]) -> f32 {
    let largest = group.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = widen_bf16(narrow(largest / 127.0));
    match scale < f32::MIN_POSITIVE {
        true => 0.0,
        false => scale,
    }
}

fn code(x: f32, scale: f32) -> i8 {
    match scale == 0.0 {
        true => 0,
        false => (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8,
    }
}

/// Keys or values of many positions, of one width each.
///
/// Keys are in panels of 16 positions, ordered by dimension; values are rows. So is their width in both
/// cases the number of elements for a position, and the positions of a head follow those of the one before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    width: usize,
    numbers: Storage,
}

#[derive(Clone, Debug, PartialEq)]
enum Storage {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Q8_0 { codes: Vec<i8>, scales: Vec<u16> },
}

impl Held {
    pub(crate) fn zeros(format: CacheFormat, positions: usize, width: usize) -> Self {
        let len = positions * width;
        let numbers = match format {
            CacheFormat::F32 => Storage::F32(vec![0.0; len]),
            CacheFormat::Bf16 => Storage::Bf16(vec![0; len]),
            CacheFormat::Q8_0 => Storage::Q8_0 {
                codes: vec![0; len],
                scales: vec![0; positions * groups(width)],
            },
        };
        Self { width, numbers }
    }

    /// Returns the numbers of some positions; keys begin at a whole panel.
    pub(crate) fn part(&self, positions: std::ops::Range<usize>) -> Numbers<'_> {
        let elements = positions.start * self.width..positions.end * self.width;
        match &self.numbers {
            Storage::F32(numbers) => Numbers::F32(&numbers[elements]),
            Storage::Bf16(numbers) => Numbers::Bf16(&numbers[elements]),
            Storage::Q8_0 { codes, scales } => {
                let groups = groups(self.width);
                Numbers::Q8_0 {
                    codes: &codes[elements],
                    scales: &scales[positions.start * groups..positions.end * groups],
                }
            }
        }
    }

    /// Stores a rounded key.
    pub(crate) fn store_key(&mut self, position: usize, key: &[f32]) {
        let (panel, lane) = (position / LANES, position % LANES);
        let (first, groups) = (panel * LANES * self.width + lane, groups(self.width));
        let first_scale = panel * LANES * groups + lane;
        self.store(key, |at| first + at * LANES, |at| first_scale + at * LANES);
    }

    /// Stores a rounded value.
    pub(crate) fn store_value(&mut self, position: usize, value: &[f32]) {
        let (first, first_scale) = (position * self.width, position * groups(self.width));
        self.store(value, |at| first + at, |at| first_scale + at);
    }

    /// Stores numbers at their places, and the scales of their groups at theirs.
    fn store(
        &mut self,
        head: &[f32],
        place: impl Fn(usize) -> usize,
        scale_place: impl Fn(usize) -> usize,
    ) {
        match &mut self.numbers {
            Storage::F32(numbers) => {
                for (at, &x) in head.iter().enumerate() {
                    numbers[place(at)] = x;
                }
            }
            Storage::Bf16(numbers) => {
                for (at, &x) in head.iter().enumerate() {
                    numbers[place(at)] = narrow(x);
                }
            }
            Storage::Q8_0 { codes, scales } => {
                for (index, group) in head.chunks(GROUP).enumerate() {
                    let scale = scale_of(group);
                    scales[scale_place(index)] = narrow(scale);
                    for (at, &x) in group.iter().enumerate() {
                        codes[place(index * GROUP + at)] = code(x, scale);
                    }
                }
            }
        }
    }
}

/// Keys or values of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    Q8_0 { codes: &'a [i8], scales: &'a [u16] },
}

/// Numbers that products read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plain<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
}

impl<'a> Numbers<'a> {
    /// Leaves out the first positions; of keys, whole panels.
    pub(crate) fn after(self, positions: usize, width: usize) -> Self {
        match self {
            Self::F32(numbers) => Self::F32(&numbers[positions * width..]),
            Self::Bf16(numbers) => Self::Bf16(&numbers[positions * width..]),
            Self::Q8_0 { codes, scales } => Self::Q8_0 {
                codes: &codes[positions * width..],
                scales: &scales[positions * groups(width)..],
            },
        }
    }

    /// Returns the keys of the first positions as products read them.
    pub(crate) fn keys<'b>(self, positions: usize, width: usize, to: &'b mut Vec<f32>) -> Plain<'b>
    where
        'a: 'b,
    {
        self.plain(
            positions.next_multiple_of(LANES) * width,
            to,
            |codes, scales, to| {
                let panels = to.chunks_mut(LANES * width);
                let scales = scales.chunks(LANES * groups(width));
                for ((to, codes), scales) in panels.zip(codes.chunks(LANES * width)).zip(scales) {
                    let lanes = to.as_chunks_mut::<LANES>().0.iter_mut();
                    let codes = codes.as_chunks::<LANES>().0;
                    for (dimension, (to, codes)) in lanes.zip(codes).enumerate() {
                        let scales = &scales[dimension / GROUP * LANES..][..LANES];
                        for ((to, &code), &scale) in to.iter_mut().zip(codes).zip(scales) {
                            *to = f32::from(code) * widen_bf16(scale);
                        }
                    }
                }
            },
        )
    }

    /// Returns the values of the first positions as products read them.
    pub(crate) fn values<'b>(
        self,
        positions: usize,
        width: usize,
        to: &'b mut Vec<f32>,
    ) -> Plain<'b>
    where
        'a: 'b,
    {
        self.plain(positions * width, to, |codes, scales, to| {
            let rows = to.chunks_mut(width).zip(codes.chunks(width));
            for ((to, codes), scales) in rows.zip(scales.chunks(groups(width))) {
                let groups = to.chunks_mut(GROUP).zip(codes.chunks(GROUP));
                for ((to, codes), &scale) in groups.zip(scales) {
                    let scale = widen_bf16(scale);
                    for (to, &code) in to.iter_mut().zip(codes) {
                        *to = f32::from(code) * scale;
                    }
                }
            }
        })
    }

    fn plain<'b>(
        self,
        len: usize,
        to: &'b mut Vec<f32>,
        widen: impl Fn(&[i8], &[u16], &mut [f32]),
    ) -> Plain<'b>
    where
        'a: 'b,
    {
        match self {
            Self::F32(numbers) => Plain::F32(numbers),
            Self::Bf16(numbers) => Plain::Bf16(numbers),
            Self::Q8_0 { codes, scales } => {
                super::attention::grow(to, len);
                widen(&codes[..len], scales, &mut to[..len]);
                Plain::F32(&to[..len])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::check;

    const FORMATS: [CacheFormat; 3] = [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Q8_0];

    fn plain(numbers: Plain<'_>) -> Vec<f32> {
        match numbers {
            Plain::F32(numbers) => numbers.to_vec(),
            Plain::Bf16(numbers) => numbers.iter().map(|&bits| widen_bf16(bits)).collect(),
        }
    }

    proptest! {
        #[test]
        fn what_was_rounded_is_held_as_it_is(
            head in prop::collection::vec(prop_oneof![-1e3f32..1e3, -1e-38f32..1e-38, prop::num::f32::NORMAL], 1..70),
        ) {
            for format in FORMATS {
                let mut rounded = head.clone();
                format.round(&mut rounded);
                let (width, padded) = (head.len(), head.len().next_multiple_of(LANES));
                let (mut keys, mut values) = (Held::zeros(format, 32, width), Held::zeros(format, 32, padded));
                keys.store_key(21, &rounded);
                values.store_value(21, &rounded);
                let keys = plain(keys.part(16..32).keys(16, width, &mut Vec::new()));
                let values = plain(values.part(21..32).values(11, padded, &mut Vec::new()));
                for (at, x) in rounded.iter().enumerate() {
                    prop_assert_eq!(keys[at * LANES + 5].to_bits(), x.to_bits(), "key {} in {:?}", at, format);
                    prop_assert_eq!(values[at].to_bits(), x.to_bits(), "value {} in {:?}", at, format);
                }
            }
        }
    }

    #[test]
    fn rounding_is_as_close_as_its_bits_allow() {
        for (format, allowed) in FORMATS.into_iter().zip([0.0, 1.0 / 256.0, 1.0 / 250.0]) {
            let exact = check::values(96, 3);
            let mut rounded = exact.clone();
            format.round(&mut rounded);
            for (exact, rounded) in exact.chunks(GROUP).zip(rounded.chunks(GROUP)) {
                let largest = exact.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (exact, rounded) in exact.iter().zip(rounded) {
                    let error = (exact - rounded).abs();
                    assert!(
                        error <= allowed * largest,
                        "{format:?}: {exact} as {rounded}"
                    );
                }
            }
        }
    }
}
