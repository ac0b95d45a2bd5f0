//! How large a message may be once it is read.
//!
//! An empty datum takes two bytes of a message and a hundred times as many in memory, so a small body
//! could fill all of it. What a message is made of is counted before anything of it is kept.

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tinkrs_types::InvalidInput;

/// The most datums of one request. Clients send at most 1,024 at a time unless they are told otherwise.
const DATUMS: usize = 65_536;
/// The most chunks, tensors and spans of all datums together.
const PARTS: usize = 1 << 20;
/// The number of the field that holds the datums.
const DATA: u32 = 3;

/// Checks how much a message would become. One that is broken passes, for the decoder to say where.
pub(super) fn check(message: &[u8]) -> Result<(), InvalidInput> {
    let (datums, parts) = count(message);
    if datums > DATUMS {
        let allowed = format!("at most {DATUMS} in a request");
        return Err(InvalidInput::new(
            "data",
            format!("{datums} datums or more"),
            allowed,
        ));
    }
    if parts > PARTS {
        return Err(InvalidInput::new(
            "data",
            format!("{parts} chunks, tensors and spans or more"),
            format!("at most {PARTS} in a request"),
        ));
    }
    Ok(())
}

/// What a datum, and each of its chunks, tensors and spans, takes in memory beside its bytes.
const DATUM_BYTES: u64 = 512;
const PART_BYTES: u64 = 256;

/// Estimates how much memory a message takes when it is read: its bytes are copied once.
pub(super) fn decoded_bytes(message: &[u8]) -> u64 {
    let (datums, parts) = count(message);
    message.len() as u64 + datums as u64 * DATUM_BYTES + parts as u64 * PART_BYTES
}

/// Counts the datums, and what they are made of, until there are too many.
fn count(mut message: &[u8]) -> (usize, usize) {
    let (mut datums, mut parts) = (0, 0);
    while let Some((tag, field)) = next_field(&mut message) {
        if tag == DATA {
            let mut datum = field;
            datums += 1;
            while parts <= PARTS && next_field(&mut datum).is_some() {
                parts += 1;
            }
        }
        if datums > DATUMS || parts > PARTS {
            break;
        }
    }
    (datums, parts)
}

/// Returns the number of the next field, and its bytes if it has a length.
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    if message.is_empty() {
        return None;
    }
    let (tag, kind) = decode_key(message).ok()?;
    if kind != WireType::LengthDelimited {
        skip_field(kind, tag, message, DecodeContext::default()).ok()?;
        return Some((tag, &[]));
    }
    let length = usize::try_from(decode_varint(message).ok()?).ok()?;
    let field = message.get(..length)?;
    message.advance(length);
    Some((tag, field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::forward_backward::ForwardBackwardRequest;
    use bytes::Bytes;

    /// A field of no bytes.
    fn empty(tag: u8) -> [u8; 2] {
        [tag << 3 | 2, 0]
    }

    #[test]
    fn datums_and_their_parts_are_counted_without_reading_them() {
        let datum = [0x1a, 4, empty(1)[0], 0, empty(2)[0], 0];
        let message = [&[0x0a, 1, b'm', 0x10, 7][..], &datum, &empty(3), &[0x30, 1]].concat();
        assert_eq!(count(&message), (2, 2));
        for end in 0..message.len() {
            check(&message[..end]).unwrap();
        }
    }

    #[test]
    fn a_message_that_would_fill_the_memory_is_refused_by_name() {
        let many = empty(3).repeat(DATUMS + 1);
        let error = ForwardBackwardRequest::decode(Bytes::from(many)).unwrap_err();
        assert!(error.to_string().contains("65537 datums"), "{error}");

        let chunks = empty(1).repeat(PARTS + 1);
        let mut message = vec![0x1a];
        prost::encoding::encode_varint(chunks.len() as u64, &mut message);
        message.extend(chunks);
        let error = ForwardBackwardRequest::decode(Bytes::from(message)).unwrap_err();
        assert!(error.to_string().contains("chunks"), "{error}");
    }
}
