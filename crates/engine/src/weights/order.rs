//! The orders in which files have the rows or columns of a matrix, where they are not Hugging Face's.

/// Where a file has each row (or column).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Where Hugging Face has it.
    #[default]
    Same,
    /// Row `j · rows / 2 + i` of each head of so many rows is at `2i + j`: GGUF keeps the two numbers that rotate
    /// together side by side, Hugging Face the first of every pair in a head's first half.
    Interleaved(usize),
    /// Heads that share a key head are not neighbours.
    Tiled(Tiled),
}

/// Hugging Face has the value heads of the first key head, then those of the second; llama.cpp has the first of
/// every key head, then the second of every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiled {
    /// Rows before the first value head, which are where they are.
    pub(crate) before: usize,
    pub(crate) key_heads: usize,
    /// Value heads of each key head.
    pub(crate) shared: usize,
    /// Rows of a value head.
    pub(crate) width: usize,
}

impl Order {
    /// Returns where the file has a row.
    pub(crate) fn place(self, row: usize) -> usize {
        match self {
            Self::Same => row,
            Self::Interleaved(rows) => {
                let (head, within) = (row / rows, row % rows);
                head * rows + within % (rows / 2) * 2 + within / (rows / 2)
            }
            Self::Tiled(tiled) if row < tiled.before => row,
            Self::Tiled(tiled) => {
                let (head, within) = (
                    (row - tiled.before) / tiled.width,
                    (row - tiled.before) % tiled.width,
                );
                let (key, which) = (head / tiled.shared, head % tiled.shared);
                tiled.before + (which * tiled.key_heads + key) * tiled.width + within
            }
        }
    }

    /// Puts rows of so many items each, as the file has them, into Hugging Face's order.
    pub(crate) fn restore<T: Copy>(self, rows: &[T], width: usize) -> Vec<T> {
        let count = rows.len() / width.max(1);
        let mut restored = Vec::with_capacity(rows.len());
        for row in 0..count {
            restored.extend_from_slice(&rows[self.place(row) * width..][..width]);
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::interleave;

    #[test]
    fn rows_of_each_head_are_separated_into_halves() {
        // Two heads of four rows, one byte a row; rows are named by their Hugging Face order.
        let interleaved = [0, 2, 1, 3, 4, 6, 5, 7];
        let in_order = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(Order::Interleaved(4).restore(&interleaved, 1), in_order);
        assert_eq!(interleave(&in_order, 2, 4), interleaved);
    }

    #[test]
    fn value_heads_are_put_beside_those_of_the_same_key_head() {
        // One row before, then two key heads with three value heads of two rows each.
        let tiled = Order::Tiled(Tiled {
            before: 1,
            key_heads: 2,
            shared: 3,
            width: 2,
        });
        let in_file = [0, 10, 11, 20, 21, 12, 13, 22, 23, 14, 15, 24, 25];
        let expected = [0, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25];
        assert_eq!(tiled.restore(&in_file, 1), expected);
    }
}
