//! Splitting a batch into requests of bounded size.
//!
//! A request carries at most so many datums and about so many bytes. Sizes are estimates of the
//! encoded form that need no encoding: they look at lengths only, so that measuring a batch costs
//! nothing next to sending it. Datums keep their order and are moved, never copied.

use tinkrs_types::input::Chunk;
use tinkrs_types::{Datum, ModelInput, TensorData};

/// A token in a protobuf request: four bytes.
const TRAINING_TOKEN_BYTES: usize = 4;
/// A token in a JSON request, where it is decimal text and a comma.
const SAMPLING_TOKEN_BYTES: usize = 10;
/// A row pointer or a column of a sparse tensor.
const INDEX_BYTES: usize = 8;

/// Splits a batch into chunks of at most `max_len` datums and about `max_bytes` bytes.
///
/// Chunks are filled greedily, in order. A datum larger than `max_bytes` is sent in a chunk of its
/// own: a limit on requests must not make an example untrainable. The chunks of an empty batch are
/// none at all.
pub(crate) fn split(data: Vec<Datum>, max_len: usize, max_bytes: usize) -> Vec<Vec<Datum>> {
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    let mut chunk_bytes = 0_usize;
    for datum in data {
        let bytes = training_bytes(&datum);
        let full = chunk.len() >= max_len || chunk_bytes.saturating_add(bytes) > max_bytes;
        if full && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk));
            chunk_bytes = 0;
        }
        chunk.push(datum);
        chunk_bytes = chunk_bytes.saturating_add(bytes);
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

/// Estimates what a datum adds to a training request.
pub(crate) fn training_bytes(datum: &Datum) -> usize {
    let tensors: usize = datum.loss_fn_inputs().values().map(tensor_bytes).sum();
    input_bytes(datum.model_input(), TRAINING_TOKEN_BYTES) + tensors
}

/// Estimates the size of a sampling request with this prompt.
pub(crate) fn sampling_bytes(prompt: &ModelInput) -> usize {
    input_bytes(prompt, SAMPLING_TOKEN_BYTES)
}

fn input_bytes(input: &ModelInput, token_bytes: usize) -> usize {
    let chunk_bytes = |chunk: &Chunk| match chunk {
        Chunk::Text(tokens) => tokens.len() * token_bytes,
        Chunk::Image(image) => image.data.len(),
        Chunk::ImageAssetPointer(pointer) => pointer.location.len(),
        Chunk::Dmel(dmel) => dmel.as_bytes().len(),
    };
    input.chunks().iter().map(chunk_bytes).sum()
}

fn tensor_bytes(tensor: &TensorData) -> usize {
    let indices = tensor
        .csr()
        .map_or(0, |csr| (csr.crow.len() + csr.col.len()) * INDEX_BYTES);
    tensor.values().len() * tensor.dtype().size_bytes() + indices
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_types::input::{Dmel, Image, ImageAssetPointer, ImageFormat};
    use tinkrs_types::tensor::CsrIndices;
    use tinkrs_types::training::LossInputs;

    /// A datum of `tokens` × 4 bytes that tells apart from others by its first token.
    fn text(first: u32, tokens: usize) -> Datum {
        let mut input = vec![0; tokens];
        input[0] = first;
        Datum::new(input, LossInputs::new()).unwrap()
    }

    #[test]
    fn batches_are_split_by_count_and_by_bytes_in_order() {
        // (tokens of each datum, max_len, max_bytes, datums in each chunk)
        let cases: [(&[usize], usize, usize, &[usize]); 11] = [
            (&[], 2, 100, &[]),
            (&[1], 2, 100, &[1]),
            (&[1, 1, 1, 1, 1], 2, 100, &[2, 2, 1]),
            (&[1, 1], 2, 100, &[2]),
            (&[5, 5, 5], 1024, 40, &[2, 1]), // exactly the limit still fits
            (&[5, 6, 5], 1024, 40, &[1, 1, 1]),
            (&[1, 50, 1], 1024, 40, &[1, 1, 1]), // larger than the limit: a chunk of its own
            (&[50, 50], 1024, 40, &[1, 1]),
            (&[50], 1024, 40, &[1]),
            (&[1, 2, 7, 1, 9], 3, 40, &[3, 2]), // both limits at work
            (&[1, 1], 0, 0, &[1, 1]),           // senseless limits still send everything
        ];
        for (tokens, max_len, max_bytes, expected) in cases {
            let data = tokens.iter().zip(1..);
            let data: Vec<Datum> = data.map(|(count, first)| text(first, *count)).collect();
            let chunks = split(data.clone(), max_len, max_bytes);
            let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
            let case = format!("{tokens:?} by {max_len} and {max_bytes} bytes");
            assert_eq!(lengths, expected, "{case}");
            assert_eq!(chunks.concat(), data, "{case}");
        }
    }

    #[test]
    fn tensors_are_moved_into_their_chunk_not_copied() {
        let data = vec![text(1, 3), text(2, 3)];
        let tokens = |datum: &Datum| match &datum.model_input().chunks()[0] {
            Chunk::Text(tokens) => tokens.as_ptr(),
            other => panic!("{other:?}"),
        };
        let before: Vec<_> = data.iter().map(tokens).collect();
        let chunks = split(data, 1, 100);
        let after: Vec<_> = chunks.iter().flatten().map(tokens).collect();
        assert_eq!(before, after);
    }

    #[test]
    fn each_kind_of_input_has_its_estimate() {
        let pointer = ImageAssetPointer {
            location: "gs://bucket".to_owned(),
            format: ImageFormat::Png,
            expected_tokens: Some(9),
        };
        let cases = [
            ("text", Chunk::from(vec![1, 2, 3]), 12, 30),
            (
                "image",
                Image::new([7; 5], ImageFormat::Jpeg)
                    .expected_tokens(1)
                    .into(),
                5,
                5,
            ),
            ("pointer", pointer.into(), 11, 11),
            ("dmel", Dmel::new([3, 1, 5, 0]).unwrap().into(), 4, 4),
        ];
        for (name, chunk, training, sampling) in cases {
            let input = ModelInput::from_chunks([chunk]);
            assert_eq!(sampling_bytes(&input), sampling, "{name} in a prompt");
            let datum = Datum::new(input, LossInputs::new()).unwrap();
            assert_eq!(training_bytes(&datum), training, "{name} in a datum");
        }
    }

    #[test]
    fn tensors_count_by_element_type_and_sparse_ones_by_their_indices_too() {
        let indices = CsrIndices {
            crow: vec![0, 1, 2],
            col: vec![0, 3],
        };
        let inputs = LossInputs::from([
            ("dense".to_owned(), TensorData::from(vec![1.0, 2.0])),
            ("whole".to_owned(), TensorData::from(vec![1, 2, 3])),
            (
                "sparse".to_owned(),
                TensorData::sparse(vec![1.0, 2.0], indices, [2, 4]).unwrap(),
            ),
        ]);
        let datum = Datum::new(vec![1, 2], inputs).unwrap();
        let expected = 2 * 4 + 2 * 4 + 3 * 8 + (2 * 4 + 5 * 8);
        assert_eq!(training_bytes(&datum), expected);
    }
}
