//! What accepted requests hold while they wait for their turn.
//!
//! All of it is in the journal. As much as there is room for stays in memory as it was decoded; the rest is let
//! go of, and read and decoded again when its turn comes. So a queue is as long as its places, and takes no more
//! memory than its part of the budget. Owners share that by the rule of [`places`](crate::places): whoever has
//! little waiting finds room for it beside those who have much.

use std::mem::size_of;
use std::sync::Arc;

use bytes::Bytes;
use tinkrs_types::input::Chunk;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::training::LossInputs;
use tinkrs_types::{Datum, RequestId, TensorData};

use crate::accept::digest;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::places::{Places, QueuePlace};
use crate::store::{Digest, Store};

/// The memory for what an owner has waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<'a> {
    pub(crate) places: &'a Arc<Places>,
    pub(crate) owner: Owner,
}

/// Something that waits for its turn.
#[derive(Debug)]
pub(crate) enum Waiting<T> {
    /// In memory. The place is for its bytes.
    InMemory(T, QueuePlace),
    /// In the journal alone.
    InJournal,
}

impl<T> Waiting<T> {
    /// Keeps a value in memory if there is room for its bytes, and lets go of it otherwise.
    pub(crate) fn new(value: T, bytes: usize, room: Room<'_>) -> Self {
        match room.places.take(room.owner, bytes) {
            Some(place) => Self::InMemory(value, place),
            None => Self::InJournal,
        }
    }

    pub(crate) fn is_in_journal(&self) -> bool {
        matches!(self, Self::InJournal)
    }
}

/// Reads the body of a request from the journal, if it is what was accepted.
pub(crate) fn read_body(store: &Store, id: &RequestId, known: &Digest) -> Result<Bytes, ApiError> {
    let body = store.body(id).map(Bytes::from);
    let body = body.map_err(|error| {
        ApiError::unavailable(format!("could not read the request again: {error}"))
    })?;
    if digest(&body) != *known {
        return Err(ApiError::unavailable("the request was damaged on the disk"));
    }
    Ok(body)
}

/// Returns about how many bytes of memory the data of a pass take.
pub(crate) fn bytes_of(data: &[Datum]) -> usize {
    data.iter().map(bytes_of_datum).sum()
}

/// What the allocator adds to a piece of memory, about.
const PIECE: usize = 16;
/// How many entries a node of a [`LossInputs`] has room for, and how many it has at least if there are several.
const NODE: usize = 11;
const HALF_NODE: usize = 5;

fn bytes_of_datum(datum: &Datum) -> usize {
    let chunks = datum.model_input().chunks().iter().map(|chunk| {
        let payload = match chunk {
            Chunk::Text(tokens) => tokens.capacity() * size_of::<u32>(),
            Chunk::Image(image) => image.data.capacity(),
            Chunk::ImageAssetPointer(pointer) => pointer.location.capacity(),
            Chunk::Dmel(dmel) => dmel.as_bytes().len() + size_of_val(dmel.shape()),
        };
        size_of::<Chunk>() + payload + 2 * PIECE
    });
    let spans = datum.provenance().into_iter().flat_map(|provenance| {
        let spans = provenance.model_input.iter();
        let spans = spans.chain(&provenance.loss_fn_inputs);
        spans.map(|span| size_of_val(span) + span.sequence().as_str().len() + PIECE)
    });
    size_of::<Datum>()
        + 2 * PIECE
        + chunks.sum::<usize>()
        + spans.sum::<usize>()
        + bytes_of_inputs(datum.loss_fn_inputs())
}

fn bytes_of_inputs(inputs: &LossInputs) -> usize {
    let entry = size_of::<String>() + size_of::<TensorData>();
    let nodes = match inputs.len() {
        0 => 0,
        count => 1 + count.saturating_sub(NODE).div_ceil(HALF_NODE),
    };
    let tensors = inputs
        .iter()
        .map(|(name, tensor)| name.len() + 2 * PIECE + bytes_of_tensor(tensor));
    nodes * (NODE * entry + PIECE) + tensors.sum::<usize>()
}

/// Returns about how many bytes a tensor has beside itself.
pub(crate) fn bytes_of_tensor(tensor: &TensorData) -> usize {
    let values = match tensor.values() {
        TensorValues::F32(values) => values.capacity() * size_of::<f32>(),
        TensorValues::I64(values) => values.capacity() * size_of::<i64>(),
    };
    let shape = tensor.shape().map_or(0, size_of_val);
    let indices = tensor.csr().map_or(0, |indices| {
        (indices.crow.capacity() + indices.col.capacity()) * size_of::<i64>() + 2 * PIECE
    });
    values + shape + indices + 2 * PIECE
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_types::ModelInput;

    #[test]
    fn what_there_is_room_for_stays_in_memory_and_the_rest_is_let_go_of() {
        let places = Places::of_bytes(6400);
        let wait = |key: &[u8], bytes| {
            let room = Room {
                places: &places,
                owner: Owner::of_key(key),
            };
            Waiting::new((), bytes, room)
        };
        let first = wait(b"a", 2000);
        assert!(!first.is_in_journal());
        let second = wait(b"a", 2000);
        assert!(second.is_in_journal(), "of one owner half of all");
        let other = wait(b"b", 100);
        assert!(!other.is_in_journal());
        drop(first);
        assert!(!wait(b"a", 2000).is_in_journal());
        assert_eq!(places.taken(), 100);
    }

    #[test]
    fn data_are_counted_with_all_that_they_are_made_of() {
        let datum = |length: usize| {
            let tokens = vec![1; length];
            let targets = vec![1_i64; length];
            let weights = vec![1.0_f32; length];
            Datum::supervised(ModelInput::from_tokens(tokens), targets, weights).unwrap()
        };
        let (short, long) = (bytes_of(&[datum(1)]), bytes_of(&[datum(1001)]));
        assert_eq!(
            long - short,
            16 * 1000,
            "4 for a token and 12 for its tensors"
        );
        // An empty one takes many times its two bytes of a message.
        assert!((300..4000).contains(&short), "{short}");
        assert_eq!(bytes_of(&vec![datum(1); 7]), 7 * short);
        let bare = Datum::new(ModelInput::new(), LossInputs::new()).unwrap();
        assert!((size_of::<Datum>()..300).contains(&bytes_of(&[bare])));
    }
}
