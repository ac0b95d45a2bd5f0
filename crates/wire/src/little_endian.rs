//! Numbers as packed little-endian bytes.
//!
//! The machines that we support are little-endian, so a vector of numbers already is its wire
//! form: encoding lends the vector's own memory, decoding is one copy to aligned memory.

use bytemuck::{NoUninit, Pod};
use bytes::Bytes;
use tinkrs_types::InvalidInput;

#[cfg(target_endian = "big")]
compile_error!("tinkrs-wire assumes a little-endian machine");

/// Lends the memory of a vector as bytes, without a copy.
pub(crate) fn lend<T: NoUninit + Send>(values: Vec<T>) -> Bytes {
    struct Owner<T>(Vec<T>);

    impl<T: NoUninit> AsRef<[u8]> for Owner<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }

    Bytes::from_owner(Owner(values))
}

/// Copies bytes into a vector of numbers.
pub(crate) fn read<T: Pod>(field: &'static str, bytes: &[u8]) -> Result<Vec<T>, InvalidInput> {
    let size = size_of::<T>();
    if !bytes.len().is_multiple_of(size) {
        return Err(InvalidInput::new(
            field,
            format_args!("{} bytes", bytes.len()),
            format!("a multiple of {size}, the size of an element"),
        ));
    }
    let numbers = bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned);
    Ok(numbers.collect())
}

/// Reads signed 32-bit token ids, none of which may be negative.
pub(crate) fn read_tokens(field: &'static str, bytes: &[u8]) -> Result<Vec<u32>, InvalidInput> {
    let tokens: Vec<u32> = read(field, bytes)?;
    check_tokens(field, &tokens)?;
    Ok(tokens)
}

/// Checks that token ids fit in a signed 32-bit integer, which is how they travel.
pub(crate) fn check_tokens(field: &'static str, tokens: &[u32]) -> Result<(), InvalidInput> {
    // The highest bit is set in the combination of all ids if it is set in any of them.
    if tokens.iter().fold(0, |bits, token| bits | token) <= i32::MAX as u32 {
        return Ok(());
    }
    let position = tokens
        .iter()
        .position(|token| *token > i32::MAX as u32)
        .unwrap_or(0);
    let found = format!("{} at position {position}", tokens[position] as i32);
    Err(InvalidInput::new(
        field,
        found,
        "token ids from 0 to 2^31 - 1",
    ))
}

/// Widens signed 32-bit integers.
pub(crate) fn read_i32_as_i64(field: &'static str, bytes: &[u8]) -> Result<Vec<i64>, InvalidInput> {
    Ok(read::<i32>(field, bytes)?
        .into_iter()
        .map(i64::from)
        .collect())
}

/// Widens bfloat16 numbers: they are the upper halves of `float32` ones.
pub(crate) fn read_bf16_as_f32(
    field: &'static str,
    bytes: &[u8],
) -> Result<Vec<f32>, InvalidInput> {
    let widen = |half: u16| f32::from_bits(u32::from(half) << 16);
    Ok(read::<u16>(field, bytes)?.into_iter().map(widen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_in_little_endian() {
        assert_eq!(&lend(vec![1_u32, 300])[..], [1, 0, 0, 0, 44, 1, 0, 0]);
        assert_eq!(read::<f32>("x", &[0, 0, 128, 63]).unwrap(), [1.0]);
        assert_eq!(
            read_bf16_as_f32("x", &[0x80, 0x3f, 0x00, 0xc0]).unwrap(),
            [1.0, -2.0]
        );
        assert_eq!(read_i32_as_i64("x", &[255; 4]).unwrap(), [-1]);
    }

    #[test]
    fn a_part_of_a_number_and_a_negative_token_are_refused() {
        assert!(read::<f32>("x", &[0; 5]).is_err());
        let error = read_tokens("tokens", &[0, 0, 0, 0, 255, 255, 255, 255]).unwrap_err();
        assert_eq!(error.found(), "-1 at position 1");
    }
}
