//! Keys and values of one sampled sequence.
//!
//! Positions are held in blocks of 64, each in the layout that attention reads, behind an `Arc`: a clone
//! shares every block with its origin, and the first write to a shared block copies that block alone.
//! A prompt that many samples share is computed and held once.
//!
//! Layers with a state have that instead, as it is after the last token: it cannot go back to an earlier one.

use std::sync::Arc;

use super::Model;
use crate::kernels::LANES;
use crate::kernels::attention::Block;
use crate::kernels::cached::{CacheFormat, Held};

/// Positions of a block.
pub(crate) const POSITIONS: usize = 64;

/// Keys and values of a block of positions, in all layers.
pub(crate) type KvBlock = Arc<BlockNumbers>;

/// Of one head of one layer after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockNumbers {
    pub(crate) keys: Held,
    pub(crate) values: Held,
}

/// The keys and values of a sequence's tokens so far.
#[derive(Clone, Debug)]
pub struct KvCache {
    blocks: Vec<KvBlock>,
    len: usize,
    shape: Shape,
    /// Of each layer that has a state.
    states: Vec<DeltaState>,
}

/// The state of a layer; empty before the first token.
#[derive(Clone, Debug, Default)]
struct DeltaState {
    heads: Arc<Vec<f32>>,
    /// The last inputs of the convolution.
    tail: Arc<Vec<f32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Layers with keys and values.
    layers: usize,
    /// Layers with a state, and its numbers.
    states: usize,
    state: usize,
    kv_heads: usize,
    head_dim: usize,
    format: CacheFormat,
}

impl Shape {
    /// Positions of all heads of a block.
    fn positions(self) -> usize {
        self.layers * self.kv_heads * POSITIONS
    }

    /// Elements of a value, which are whole vectors.
    fn value(self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn block_bytes(self) -> usize {
        self.positions() * (self.format.bytes(self.head_dim) + self.format.bytes(self.value()))
    }

    fn empty_block(self) -> KvBlock {
        Arc::new(BlockNumbers {
            keys: Held::zeros(self.format, self.positions(), self.head_dim),
            values: Held::zeros(self.format, self.positions(), self.value()),
        })
    }

    /// The first position of a head in a block.
    fn head(self, layer: usize, kv_head: usize) -> usize {
        (layer * self.kv_heads + kv_head) * POSITIONS
    }
}

impl KvCache {
    /// Makes an empty cache for sequences of a model.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let config = model.config();
        let states = config.delta_layers(config.layers);
        let state = config.features.delta.map_or(0, |delta| {
            delta.values() * delta.key_dim + (delta.kernel - 1) * delta.channels()
        });
        let shape = Shape {
            layers: config.layers - states,
            states,
            state,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            format: model.plan.key_values(),
        };
        Self {
            blocks: Vec::new(),
            len: 0,
            shape,
            states: vec![DeltaState::default(); states],
        }
    }

    /// Returns the number of tokens held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no token is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all tokens from position `len` on, or all of them if the model has layers with a state, which cannot
    /// go back.
    pub fn truncate(&mut self, len: usize) {
        let len = match self.states.is_empty() || len >= self.len {
            true => len,
            false => 0,
        };
        if len == 0 {
            self.states.fill_with(DeltaState::default);
        }
        self.len = self.len.min(len);
        self.blocks.truncate(self.len.div_ceil(POSITIONS));
    }

    /// Returns the memory of its blocks, shared ones included.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let held = |state: &DeltaState| state.heads.len() + state.tail.len();
        let states: usize = self.states.iter().map(held).sum();
        self.blocks.len() * self.shape.block_bytes() + states * size_of::<f32>()
    }

    /// Returns the memory that `tokens` tokens of a model take in a cache of their own.
    #[must_use]
    pub fn bytes_for(model: &Model, tokens: usize) -> usize {
        let shape = Self::new(model).shape;
        let states = shape.states * shape.state * size_of::<f32>();
        tokens.div_ceil(POSITIONS) * shape.block_bytes() + states
    }

    /// Begins an empty cache with full blocks of another one that read the same tokens.
    pub(crate) fn adopt(&mut self, blocks: Vec<KvBlock>) {
        debug_assert!(self.is_empty(), "blocks belong at the beginning");
        self.len = blocks.len() * POSITIONS;
        self.blocks = blocks;
    }

    /// Returns the block with this index, to be shared. It should be full: a block that is still written
    /// to would be copied at the next token.
    pub(crate) fn shared_block(&self, index: usize) -> KvBlock {
        Arc::clone(&self.blocks[index])
    }

    /// Makes room for tokens that the caller is about to store, and blocks of its own to write to.
    pub(crate) fn grow(&mut self, tokens: usize) {
        let first = self.len / POSITIONS;
        self.len += tokens;
        let wanted = self.len.div_ceil(POSITIONS);
        let shape = self.shape;
        self.blocks
            .resize_with(wanted.max(self.blocks.len()), || shape.empty_block());
        for block in &mut self.blocks[first..] {
            Arc::make_mut(block);
        }
    }

    /// Stores one position of one head; the position must lie in what [`grow`](Self::grow) added.
    pub(crate) fn store(
        &mut self,
        layer: usize,
        kv_head: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let at = self.shape.head(layer, kv_head) + position % POSITIONS;
        let block = Arc::get_mut(&mut self.blocks[position / POSITIONS])
            .expect("`grow` made the block unique");
        block.keys.store_key(at, key);
        block.values.store_value(at, value);
    }

    /// Returns the blocks of one head in order.
    pub(crate) fn blocks(
        &self,
        layer: usize,
        kv_head: usize,
    ) -> impl Iterator<Item = Block<'_>> + Clone {
        let first = self.shape.head(layer, kv_head);
        self.blocks
            .iter()
            .enumerate()
            .map(move |(index, block)| Block {
                keys: block.keys.part(first..first + POSITIONS),
                values: block.values.part(first..first + POSITIONS),
                len: POSITIONS.min(self.len - index * POSITIONS),
            })
    }

    /// Whether blocks are all that a sequence needs, so that another one can begin with them.
    pub(crate) fn is_shareable(&self) -> bool {
        self.states.is_empty()
    }

    /// Takes a layer's state out, to be changed and [put back](Self::set_delta_state). One that a clone shares is copied.
    pub(crate) fn take_delta_state(&mut self, layer: usize) -> Vec<f32> {
        Arc::unwrap_or_clone(std::mem::take(&mut self.states[layer].heads))
    }

    pub(crate) fn set_delta_state(&mut self, layer: usize, state: Vec<f32>) {
        self.states[layer].heads = Arc::new(state);
    }

    /// The last inputs of a layer's convolution.
    pub(crate) fn delta_tail(&self, layer: usize) -> &[f32] {
        &self.states[layer].tail
    }

    pub(crate) fn set_delta_tail(&mut self, layer: usize, tail: Vec<f32>) {
        self.states[layer].tail = Arc::new(tail);
    }

    /// Whether the cache was made for a model of this shape.
    pub(crate) fn fits(&self, model: &Model) -> bool {
        self.shape == Self::new(model).shape
    }
}
