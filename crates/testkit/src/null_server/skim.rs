//! Finding a number in a request without reading the request.

/// Returns the number behind a JSON key.
pub(super) fn number_after(body: &[u8], key: &[u8]) -> Option<u64> {
    let digits = value_after(body, key)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit());
    let digits = &digits[..end.unwrap_or(digits.len())];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the text behind a JSON key, if it has no escapes.
pub(super) fn text_after<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a str> {
    let text = value_after(body, key)?.strip_prefix(b"\"")?;
    let end = text.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&text[..end])
        .ok()
        .filter(|text| !text.is_empty())
}

fn value_after<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let place = body.windows(key.len()).position(|window| window == key)?;
    Some(body[place + key.len()..].trim_ascii_start())
}

/// Returns the number of target tokens of each datum of a pass.
pub(super) fn target_lengths(pass: &[u8]) -> Option<Vec<usize>> {
    const DATA: u64 = 3;
    const LOSS_FN_INPUTS: u64 = 2;
    let mut lengths = vec![];
    for field in Fields(pass) {
        let (DATA, Some(datum)) = field? else {
            continue;
        };
        for field in Fields(datum) {
            let (LOSS_FN_INPUTS, Some(entry)) = field? else {
                continue;
            };
            if let Some(length) = target_length(entry) {
                lengths.push(length);
            }
        }
    }
    Some(lengths)
}

/// Returns the length of the tensor in a map entry, if the entry is the targets'.
fn target_length(entry: &[u8]) -> Option<usize> {
    const KEY: u64 = 1;
    const TENSOR: u64 = 2;
    const DENSE: u64 = 1;
    let fields = || Fields(entry).flatten();
    fields().find(|(number, value)| *number == KEY && *value == Some(b"target_tokens"))?;
    let tensor = fields().find(|(number, _)| *number == TENSOR)?.1?;
    let dense = Fields(tensor)
        .flatten()
        .find(|(number, _)| *number == DENSE);
    Some(dense?.1?.len() / size_of::<i64>())
}

/// The fields of a protobuf message: their number, and their bytes if they have any.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    /// `None` inside is a message that is cut short.
    type Item = Option<(u64, Option<&'a [u8]>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Option<&'a [u8]>)> {
        let tag = self.varint()?;
        let bytes = match tag & 7 {
            0 => {
                self.varint()?;
                None
            }
            1 => Some(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Some(self.take(length)?)
            }
            5 => Some(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, bytes))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_types::{Datum, LossFn};
    use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

    #[test]
    fn the_targets_of_each_datum_are_counted() {
        let datum = |length: usize| {
            Datum::supervised(vec![1; length], vec![2; length], vec![1.0; length]).unwrap()
        };
        let request = ForwardBackwardRequest {
            model_id: "m".into(),
            seq_id: 300,
            data: vec![datum(5), datum(1_000)],
            loss_fn: LossFn::CrossEntropy,
            forward_only: false,
        };
        let body = request.encode().unwrap();
        assert_eq!(target_lengths(&body), Some(vec![5, 1_000]));
        assert_eq!(target_lengths(&body[..body.len() - 1]), None);
    }

    #[test]
    fn json_values_are_found_with_and_without_spaces() {
        for body in [r#"{"a": 12,"b": "x"}"#, r#"{"a":12,"b":"x"}"#] {
            assert_eq!(number_after(body.as_bytes(), b"\"a\":"), Some(12));
            assert_eq!(text_after(body.as_bytes(), b"\"b\":"), Some("x"));
            assert_eq!(text_after(body.as_bytes(), b"\"c\":"), None);
        }
    }
}
