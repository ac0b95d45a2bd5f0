//! Rows that are read again when their turn comes.

use super::store::Stored;

/// A row of a file as it is written there, and how many tokens are made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRow {
    /// The row.
    pub text: String,
    /// How many tokens it has, once it is rendered.
    pub tokens: usize,
}

/// The number of tokens, that of bytes, and the bytes, four in a word.
impl Stored for TextRow {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn longest(&self) -> usize {
        self.tokens
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len()
    }

    fn write(&self, words: &mut Vec<u32>) {
        words.extend([self.tokens as u32, self.text.len() as u32]);
        let (whole, rest) = self.text.as_bytes().as_chunks::<4>();
        words.extend(whole.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            words.push(u32::from_le_bytes(last));
        }
    }

    fn read(words: &mut impl Iterator<Item = u32>) -> Option<Self> {
        let (tokens, length) = (words.next()? as usize, words.next()? as usize);
        let bytes = words.by_ref().take(length.div_ceil(4));
        let mut bytes: Vec<u8> = bytes.flat_map(u32::to_le_bytes).collect();
        if bytes.len() < length {
            return None;
        }
        bytes.truncate(length);
        let text = String::from_utf8(bytes).ok()?;
        Some(Self { text, tokens })
    }

    fn identity(&self) -> impl Iterator<Item = u32> {
        self.text.bytes().map(u32::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Store;

    #[test]
    fn rows_of_any_length_are_read_again_and_others_are_none() {
        for length in 0..9 {
            let text: String = "aé→🦀 ok".chars().take(length).collect();
            let row = TextRow {
                text,
                tokens: length,
            };
            let mut words = Vec::new();
            row.write(&mut words);
            assert_eq!(TextRow::read(&mut words.iter().copied()), Some(row));
            let cut = words[..words.len() - 1].iter().copied();
            assert_eq!(TextRow::read(&mut cut.clone()), None, "{length}");
        }
        assert_eq!(
            TextRow::read(&mut [0, 1, 0xff].into_iter()),
            None,
            "no text"
        );
    }

    #[test]
    fn a_bounded_part_of_the_memory_holds_them() {
        let row = |n: usize| TextRow {
            text: format!("{{\"prompt\": \"{}\"}}", "x".repeat(n)),
            tokens: n,
        };
        let mut rows = Store::with_limit(4000);
        for n in 0..200 {
            rows.push(row(n)).unwrap();
        }
        assert!(format!("{rows:?}").contains("in_memory: false"));
        assert_eq!(*rows.get(137).unwrap(), row(137));
        assert_eq!((rows.tokens(137), rows.longest()), (137, 199));
    }
}
