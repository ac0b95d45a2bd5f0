//! zstd, which pass requests may be compressed with.

use crate::DecodeError;
use bytes::Bytes;
use std::io::Read;

/// Compresses a body at the library's default level.
pub fn compress(body: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(body, zstd::DEFAULT_COMPRESSION_LEVEL)
        .expect("compressing from memory to memory only fails without memory")
}

/// Returns how large a body says that it is going to be, if it says so.
pub fn announced_bytes(body: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(body).ok().flatten()
}

/// Decompresses a body that must not grow beyond a limit.
///
/// # Errors
/// If the body is not a zstd frame or grows beyond the limit, which is noticed before the rest
/// is decompressed.
pub fn decompress(body: &[u8], limit_bytes: usize) -> Result<Bytes, DecodeError> {
    let decoder = zstd::stream::read::Decoder::new(body).map_err(DecodeError::Zstd)?;
    let mut plain = Vec::new();
    let beyond = u64::try_from(limit_bytes)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    decoder
        .take(beyond)
        .read_to_end(&mut plain)
        .map_err(DecodeError::Zstd)?;
    if plain.len() > limit_bytes {
        return Err(DecodeError::TooLarge { limit_bytes });
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_comes_back_up_to_the_limit() {
        let body = vec![7; 100_000];
        let small = compress(&body);
        assert!(small.len() < 1_000);
        assert_eq!(announced_bytes(&small), Some(100_000));
        assert_eq!(announced_bytes(b"not zstd"), None);
        assert_eq!(decompress(&small, 100_000).unwrap(), body);
        assert!(matches!(
            decompress(&small, 99_999),
            Err(DecodeError::TooLarge { .. })
        ));
        assert!(matches!(
            decompress(b"not zstd", 10),
            Err(DecodeError::Zstd(_))
        ));
    }
}
