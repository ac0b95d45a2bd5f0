//! What a model reads: a list of chunks, of which text is the common one.

use crate::InvalidInput;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The input of a model: text tokens, images and audio in order.
///
/// ```
/// use tinkrs_types::input::{Image, ImageFormat};
/// use tinkrs_types::ModelInput;
///
/// let mut input = ModelInput::from_tokens([1, 2, 3]);
/// input.push_image(Image::new(b"...".to_vec(), ImageFormat::Png).expected_tokens(64));
/// input.push_tokens([4]);
/// assert_eq!(input.len(), Some(68));
/// assert_eq!(input.to_tokens(), None, "an image has no tokens to show");
/// ```
///
/// Clones share their chunks until one of them is changed, so that asking a thousand times with
/// the same prompt costs one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInput {
    chunks: Arc<Vec<Chunk>>,
}

impl ModelInput {
    /// Makes an input without chunks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an input of one text chunk.
    pub fn from_tokens(tokens: impl Into<Vec<u32>>) -> Self {
        Self {
            chunks: Arc::new(vec![Chunk::Text(tokens.into())]),
        }
    }

    /// Makes an input of the given chunks.
    pub fn from_chunks(chunks: impl Into<Vec<Chunk>>) -> Self {
        Self {
            chunks: Arc::new(chunks.into()),
        }
    }

    /// Adds a text chunk.
    pub fn push_tokens(&mut self, tokens: impl Into<Vec<u32>>) {
        self.push(Chunk::Text(tokens.into()));
    }

    /// Adds an image.
    pub fn push_image(&mut self, image: Image) {
        self.push(Chunk::Image(image));
    }

    /// Adds a chunk of any kind.
    pub fn push(&mut self, chunk: impl Into<Chunk>) {
        Arc::make_mut(&mut self.chunks).push(chunk.into());
    }

    /// Returns the chunks in order.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Takes the chunks out.
    pub fn into_chunks(self) -> Vec<Chunk> {
        Arc::unwrap_or_clone(self.chunks)
    }

    /// Returns the length in tokens, or `None` if an image does not say how many it takes.
    pub fn len(&self) -> Option<usize> {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// Returns whether there is nothing to read: no chunks, or empty ones only.
    pub fn is_empty(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.len() == Some(0))
    }

    /// Returns all tokens, or `None` if a chunk is not text.
    pub fn to_tokens(&self) -> Option<Vec<u32>> {
        let texts = self.chunks.iter().map(|chunk| match chunk {
            Chunk::Text(tokens) => Some(tokens.as_slice()),
            _ => None,
        });
        Some(texts.collect::<Option<Vec<_>>>()?.concat())
    }
}

impl From<Vec<u32>> for ModelInput {
    fn from(tokens: Vec<u32>) -> Self {
        Self::from_tokens(tokens)
    }
}

impl From<&[u32]> for ModelInput {
    fn from(tokens: &[u32]) -> Self {
        Self::from_tokens(tokens)
    }
}

/// A piece of a model's input.
#[derive(Clone, Debug, PartialEq)]
pub enum Chunk {
    /// Token ids.
    Text(Vec<u32>),
    /// An encoded image.
    Image(Image),
    /// An image that the server fetches. It can be sampled from but not trained on.
    ImageAssetPointer(ImageAssetPointer),
    /// Audio features in a serialized tensor container.
    Dmel(Dmel),
}

impl Chunk {
    /// Returns the length in tokens, or `None` if an image does not say how many it takes.
    pub fn len(&self) -> Option<usize> {
        match self {
            Self::Text(tokens) => Some(tokens.len()),
            Self::Image(image) => image.expected_tokens.map(|count| count as usize),
            Self::ImageAssetPointer(pointer) => pointer.expected_tokens.map(|count| count as usize),
            Self::Dmel(dmel) => Some(dmel.len()),
        }
    }

    /// Returns whether the chunk takes no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Returns the name of the chunk's kind on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "encoded_text",
            Self::Image(_) => "image",
            Self::ImageAssetPointer(_) => "image_asset_pointer",
            Self::Dmel(_) => "dmel",
        }
    }
}

impl From<Vec<u32>> for Chunk {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Text(tokens)
    }
}

impl From<Image> for Chunk {
    fn from(image: Image) -> Self {
        Self::Image(image)
    }
}

impl From<ImageAssetPointer> for Chunk {
    fn from(pointer: ImageAssetPointer) -> Self {
        Self::ImageAssetPointer(pointer)
    }
}

impl From<Dmel> for Chunk {
    fn from(dmel: Dmel) -> Self {
        Self::Dmel(dmel)
    }
}

/// How an image file is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Png => "png",
            Self::Jpeg => "jpeg",
        })
    }
}

/// An encoded image file.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// The bytes of the file.
    pub data: Vec<u8>,
    /// How they are encoded.
    pub format: ImageFormat,
    /// How many tokens the caller expects; lets the server fail fast on a mismatch.
    pub expected_tokens: Option<u32>,
}

impl Image {
    /// Wraps the bytes of an image file.
    pub fn new(data: impl Into<Vec<u8>>, format: ImageFormat) -> Self {
        Self {
            data: data.into(),
            format,
            expected_tokens: None,
        }
    }

    /// States how many tokens the image is expected to take.
    #[must_use]
    pub fn expected_tokens(mut self, count: u32) -> Self {
        self.expected_tokens = Some(count);
        self
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("data", &format_args!("{} bytes", self.data.len()))
            .field("format", &self.format)
            .field("expected_tokens", &self.expected_tokens)
            .finish()
    }
}

/// An image that lies where the server can fetch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageAssetPointer {
    /// Where it lies.
    pub location: String,
    /// How it is encoded.
    pub format: ImageFormat,
    /// How many tokens the caller expects.
    pub expected_tokens: Option<u32>,
}

/// Audio features in a serialized tensor container, whose first dimension is its length.
#[derive(Clone, PartialEq, Eq)]
pub struct Dmel {
    container: Vec<u8>,
    shape: Vec<u64>,
}

impl Dmel {
    /// Wraps a container after reading its header.
    ///
    /// # Errors
    /// If the header is not one: an optional byte 254, a dtype from 0 to 7, then the number of
    /// dimensions and each dimension as LEB128 integers; or if the first dimension, which is
    /// the length in tokens, does not fit in 32 bits.
    pub fn new(container: impl Into<Vec<u8>>) -> Result<Self, InvalidInput> {
        let container = container.into();
        let shape = dmel_shape(&container).ok_or_else(|| {
            InvalidInput::new(
                "dmel",
                format_args!("{} bytes without a readable header", container.len()),
                "a serialized tensor container with at least one dimension",
            )
        })?;
        if u32::try_from(shape[0]).is_err() {
            let found = format!("a first dimension of {}", shape[0]);
            return Err(InvalidInput::new("dmel", found, "at most 2^32 - 1 tokens"));
        }
        Ok(Self { container, shape })
    }

    /// Returns the bytes of the container.
    pub fn as_bytes(&self) -> &[u8] {
        &self.container
    }

    /// Takes the bytes of the container out.
    pub fn into_bytes(self) -> Vec<u8> {
        self.container
    }

    /// Returns the shape in the header.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the length in tokens: the first dimension.
    pub fn len(&self) -> usize {
        self.shape[0] as usize
    }

    /// Returns whether the first dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Dmel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dmel")
            .field("container", &format_args!("{} bytes", self.container.len()))
            .field("shape", &self.shape)
            .finish()
    }
}

/// No real container has more dimensions; a larger number is a corrupt header.
const MAX_DIMENSIONS: u64 = 64;

fn dmel_shape(container: &[u8]) -> Option<Vec<u64>> {
    const CONSTANT_TENSOR: u8 = 254;
    let mut bytes = container.iter().copied();
    let mut dtype = bytes.next()?;
    if dtype == CONSTANT_TENSOR {
        dtype = bytes.next()?;
    }
    let dimensions = if dtype <= 7 {
        leb128(&mut bytes)?
    } else {
        return None;
    };
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return None;
    }
    (0..dimensions).map(|_| leb128(&mut bytes)).collect()
}

fn leb128(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = bytes.next()?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dmel_length_is_the_first_dimension_of_the_header() {
        let dmel = Dmel::new([0x03, 0x02, 0x88, 0x01, 0x50]).unwrap();
        assert_eq!((dmel.shape(), dmel.len()), (&[136, 80][..], 136));
        let constant = Dmel::new([0xfe, 0x00, 0x01, 0x05, 0xaa]).unwrap();
        assert_eq!(constant.shape(), [5]);
    }

    #[test]
    fn a_dmel_header_that_is_cut_or_absurd_is_refused() {
        let endless = [
            0x00, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ];
        let cases: [&[u8]; 7] = [
            &[],
            &[0xfe],
            &[0x08, 0x01, 0x01],
            &[0x00],
            &[0x00, 0x00],
            &[0x00, 0x02, 0x05],
            &endless,
        ];
        for bytes in cases {
            assert!(Dmel::new(bytes).is_err(), "{bytes:02x?}");
        }
    }

    #[test]
    fn a_dmel_of_absurd_length_is_refused_and_never_allocated_for() {
        let header = |length: &[u8]| [&[0x00, 0x01], length].concat();
        let longest = Dmel::new(header(&[0xff, 0xff, 0xff, 0xff, 0x0f])).unwrap();
        let too_long = Dmel::new(header(&[0x80, 0x80, 0x80, 0x80, 0x10]));
        assert_eq!(too_long.unwrap_err().field(), "dmel");

        let input = ModelInput::from_chunks(vec![Chunk::from(longest); 3]);
        assert_eq!(input.len(), Some(3 * u32::MAX as usize));
        assert_eq!(input.to_tokens(), None);
    }

    #[test]
    fn an_image_without_a_count_leaves_the_length_open() {
        let input = ModelInput::from_chunks([Chunk::from(Image::new([1], ImageFormat::Png))]);
        assert_eq!(input.len(), None);
        assert!(!input.is_empty());
        assert_eq!(ModelInput::new().len(), Some(0));
    }
}
