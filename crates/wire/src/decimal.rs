//! Numbers as text, many at a time.
//!
//! The tokens of prompts are most of what a sampling client writes. One call for each of them to
//! a general writer costs twice as much as the digits.

/// A number of ten digits and a comma.
const WIDEST: usize = 11;
/// How many numbers are written before their text is copied to where it belongs.
const BLOCK: usize = 128;

/// The two digits of every number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Appends numbers with commas between them.
pub(crate) fn append_list(text: &mut Vec<u8>, numbers: &[u32]) {
    let mut block = [0; BLOCK * WIDEST];
    for numbers in numbers.chunks(BLOCK) {
        let mut end = 0;
        for number in numbers {
            end += write(*number, &mut block[end..]);
        }
        text.extend_from_slice(&block[..end]);
    }
    if !numbers.is_empty() {
        // The last one has a comma too.
        text.pop();
    }
}

/// Writes a number and a comma, and returns how many bytes that took.
fn write(mut number: u32, place: &mut [u8]) -> usize {
    let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let place = &mut place[..=digits];
    place[digits] = b',';
    let mut end = digits;
    while number >= 100 {
        end -= 2;
        place[end..end + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    match number {
        10.. => place[..2].copy_from_slice(&PAIRS[number as usize]),
        _ => place[0] = b'0' + number as u8,
    }
    digits + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_as_serde_writes_them() {
        let edges = (0..10).flat_map(|power| {
            let ten = 10_u32.pow(power);
            [ten - 1, ten, ten + 1, ten.saturating_mul(7)]
        });
        let mut numbers: Vec<u32> = edges.chain([u32::MAX, 0]).collect();
        for length in [0, 1, numbers.len()] {
            let mut text = b"[".to_vec();
            append_list(&mut text, &numbers[..length]);
            text.push(b']');
            assert_eq!(text, serde_json::to_vec(&numbers[..length]).unwrap());
        }
        numbers = (0..1_000).map(|n| n * 4_000_037).collect();
        let mut text = Vec::new();
        append_list(&mut text, &numbers);
        let expected = serde_json::to_string(&numbers).unwrap();
        assert_eq!(text, expected.as_bytes()[1..expected.len() - 1]);
    }
}
