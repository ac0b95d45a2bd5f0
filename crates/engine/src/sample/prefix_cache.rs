//! A cache of prompt beginnings that several requests share.
//!
//! Keys and values of a token depend only on the model, the adapter and the tokens before it, so whatever
//! was computed for one prompt serves every other prompt that begins alike. The cache is a tree for each
//! adapter: an edge is a block of [`BLOCK_TOKENS`] tokens, a node holds what was computed for them. Tokens
//! are compared, not hashed to a name, so there are no collisions.
//!
//! Invariants:
//!
//! - The bytes held never exceed the limit. Room is made by dropping the least recently used leaves, one
//!   block at a time; blocks that somebody else still holds are passed over, since dropping them frees
//!   nothing. What does not fit is not cached.
//! - A cached block is what would have been computed, bit for bit. The cache relies on the model for
//!   that, and never alters a block.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::cache::{KvBlock, POSITIONS};

/// Tokens in a block: those of a block of keys and values, so that blocks are shared and never copied.
/// Hits are multiples of it.
pub(crate) const BLOCK_TOKENS: usize = POSITIONS;

type Tokens = [u32; BLOCK_TOKENS];

/// Names the weights that computed a block: the base model, or one snapshot of one adapter.
///
/// Two values that are equal must mean the same weights for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightsId(pub(crate) u64);

impl WeightsId {
    /// The base model without an adapter.
    pub const BASE: Self = Self(0);
}

/// The shared prefixes.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    limit_bytes: usize,
    block_bytes: usize,
    /// Nodes by number; numbers are never used again.
    nodes: HashMap<u64, Node>,
    children: HashMap<(Parent, Tokens), u64>,
    /// Leaves in order of their last use: the candidates for eviction.
    leaves: BTreeSet<(u64, u64)>,
    clock: u64,
    next_node: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Parent {
    Root(WeightsId),
    Node(u64),
}

#[derive(Debug)]
struct Node {
    parent: Parent,
    tokens: Tokens,
    block: KvBlock,
    last_use: u64,
    children: Vec<u64>,
}

impl PrefixCache {
    /// Makes an empty cache of blocks that take `block_bytes` each.
    pub(crate) fn new(limit_bytes: usize, block_bytes: usize) -> Self {
        Self {
            limit_bytes,
            block_bytes,
            nodes: HashMap::new(),
            children: HashMap::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            next_node: 0,
        }
    }

    /// Returns the bytes held.
    pub(crate) fn used_bytes(&self) -> usize {
        self.nodes.len() * self.block_bytes
    }

    /// Returns the blocks of the longest cached beginning of `tokens`, in order.
    ///
    /// A part of a block does not count: to leave the last token of a prompt to be computed, look up the
    /// prompt without it.
    pub(crate) fn lookup(&mut self, weights: WeightsId, tokens: &[u32]) -> Vec<KvBlock> {
        self.clock += 1;
        let mut parent = Parent::Root(weights);
        let mut blocks = Vec::new();
        for tokens in tokens.as_chunks::<BLOCK_TOKENS>().0 {
            let Some(&id) = self.children.get(&(parent, *tokens)) else {
                break;
            };
            self.touch(id);
            blocks.push(Arc::clone(&self.nodes[&id].block));
            parent = Parent::Node(id);
        }
        blocks
    }

    /// Caches the whole blocks of `tokens` that are not cached yet, as far as there is room.
    ///
    /// `make` gives the block with an index, counted from the start of `tokens`.
    pub(crate) fn insert(
        &mut self,
        weights: WeightsId,
        tokens: &[u32],
        mut make: impl FnMut(usize) -> KvBlock,
    ) {
        self.clock += 1;
        let mut parent = Parent::Root(weights);
        for (index, tokens) in tokens.as_chunks::<BLOCK_TOKENS>().0.iter().enumerate() {
            let id = match self.children.get(&(parent, *tokens)) {
                Some(&id) => {
                    self.touch(id);
                    id
                }
                None => {
                    // The chain being extended was touched just now, so it is evicted last; when
                    // nothing else is left, it has outgrown the cache and ends here.
                    if !self.make_room(parent) {
                        return;
                    }
                    self.add(parent, *tokens, make(index))
                }
            };
            parent = Parent::Node(id);
        }
    }

    /// Drops everything computed with these weights; for adapters that are gone.
    pub(crate) fn forget(&mut self, weights: WeightsId) {
        let roots = self
            .children
            .iter()
            .filter(|((parent, _), _)| *parent == Parent::Root(weights));
        let mut doomed: Vec<u64> = roots.map(|(_, &id)| id).collect();
        while let Some(&id) = doomed.last() {
            let children = &self.nodes[&id].children;
            if children.is_empty() {
                self.remove(id);
                doomed.pop();
            } else {
                doomed.extend(children);
            }
        }
    }

    fn touch(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).expect("children point to nodes");
        if self.leaves.remove(&(node.last_use, id)) {
            self.leaves.insert((self.clock, id));
        }
        node.last_use = self.clock;
    }

    fn add(&mut self, parent: Parent, tokens: Tokens, block: KvBlock) -> u64 {
        let id = self.next_node;
        self.next_node += 1;
        if let Parent::Node(parent) = parent {
            let node = self
                .nodes
                .get_mut(&parent)
                .expect("parents outlive their children");
            node.children.push(id);
            self.leaves.remove(&(node.last_use, parent));
        }
        self.nodes.insert(
            id,
            Node {
                parent,
                tokens,
                block,
                last_use: self.clock,
                children: Vec::new(),
            },
        );
        self.children.insert((parent, tokens), id);
        self.leaves.insert((self.clock, id));
        id
    }

    /// Makes room for one block without dropping `needed`, and returns whether there is room now.
    fn make_room(&mut self, needed: Parent) -> bool {
        while self.used_bytes() + self.block_bytes > self.limit_bytes {
            let is_free = |id: u64| {
                Parent::Node(id) != needed && Arc::strong_count(&self.nodes[&id].block) == 1
            };
            let oldest = self
                .leaves
                .iter()
                .map(|&(_, id)| id)
                .find(|&id| is_free(id));
            let Some(oldest) = oldest else { return false };
            self.remove(oldest);
        }
        true
    }

    fn remove(&mut self, id: u64) {
        let node = self.nodes.remove(&id).expect("only nodes are removed");
        self.children.remove(&(node.parent, node.tokens));
        self.leaves.remove(&(node.last_use, id));
        if let Parent::Node(parent_id) = node.parent {
            let parent = self
                .nodes
                .get_mut(&parent_id)
                .expect("parents outlive their children");
            parent.children.retain(|&child| child != id);
            if parent.children.is_empty() {
                self.leaves.insert((parent.last_use, parent_id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::LANES;
    use crate::kernels::cached::{CacheFormat, Held};
    use crate::model::cache::BlockNumbers;

    const BASE: WeightsId = WeightsId(0);

    fn cache(blocks: usize) -> PrefixCache {
        PrefixCache::new(blocks * 10, 10)
    }

    /// A sequence whose blocks are filled with the given numbers.
    fn tokens(blocks: &[u32]) -> Vec<u32> {
        blocks
            .iter()
            .flat_map(|&number| [number; BLOCK_TOKENS])
            .collect()
    }

    /// Stands for what would be computed for the last of some blocks.
    fn computed(blocks: &[u32]) -> KvBlock {
        let mut keys = Held::zeros(CacheFormat::F32, LANES, blocks.len());
        let numbers: Vec<f32> = blocks.iter().map(|&number| number as f32).collect();
        keys.store_key(0, &numbers);
        let values = Held::zeros(CacheFormat::F32, 0, LANES);
        Arc::new(BlockNumbers { keys, values })
    }

    fn insert(cache: &mut PrefixCache, weights: WeightsId, blocks: &[u32]) {
        cache.insert(weights, &tokens(blocks), |index| {
            computed(&blocks[..=index])
        });
    }

    fn hits(cache: &mut PrefixCache, weights: WeightsId, blocks: &[u32]) -> usize {
        let found = cache.lookup(weights, &tokens(blocks));
        for (index, block) in found.iter().enumerate() {
            assert_eq!(
                *block,
                computed(&blocks[..=index]),
                "a block of another prefix"
            );
        }
        found.len()
    }

    #[test]
    fn prompts_share_their_common_beginning() {
        let mut cache = cache(10);
        insert(&mut cache, BASE, &[1, 2, 3]);
        insert(&mut cache, BASE, &[1, 2, 4]);
        assert_eq!(
            cache.used_bytes(),
            40,
            "two shared blocks and two of their own"
        );
        assert_eq!(hits(&mut cache, BASE, &[1, 2, 4, 9]), 3);
        assert_eq!(hits(&mut cache, BASE, &[1, 9]), 1);
        assert_eq!(
            hits(&mut cache, BASE, &[2, 3]),
            0,
            "the same block elsewhere is another block"
        );
    }

    #[test]
    fn only_whole_blocks_count() {
        let mut cache = cache(10);
        let prompt = tokens(&[1, 2]);
        cache.insert(BASE, &prompt[..2 * BLOCK_TOKENS - 1], |_| computed(&[1]));
        assert_eq!(cache.lookup(BASE, &prompt).len(), 1);
        assert_eq!(cache.lookup(BASE, &prompt[..BLOCK_TOKENS - 1]).len(), 0);
    }

    #[test]
    fn adapters_share_nothing_and_are_forgotten_alone() {
        let mut cache = cache(10);
        let adapter = WeightsId(7);
        insert(&mut cache, BASE, &[1, 2]);
        assert_eq!(hits(&mut cache, adapter, &[1, 2]), 0);
        insert(&mut cache, adapter, &[1, 2]);
        insert(&mut cache, adapter, &[1, 3]);
        cache.forget(adapter);
        assert_eq!(hits(&mut cache, adapter, &[1, 2]), 0);
        assert_eq!(hits(&mut cache, BASE, &[1, 2]), 2);
        assert_eq!(cache.used_bytes(), 20);
    }

    #[test]
    fn the_least_recently_used_end_goes_first() {
        let mut cache = cache(4);
        insert(&mut cache, BASE, &[1, 2]);
        insert(&mut cache, BASE, &[3, 4]);
        assert_eq!(hits(&mut cache, BASE, &[1, 2]), 2); // now the more recent of the two
        insert(&mut cache, BASE, &[5]);
        assert_eq!(
            hits(&mut cache, BASE, &[3, 4]),
            1,
            "its end was dropped, its beginning kept"
        );
        assert_eq!(hits(&mut cache, BASE, &[1, 2]), 2);
        assert_eq!(hits(&mut cache, BASE, &[5]), 1);
    }

    #[test]
    fn the_limit_is_never_exceeded() {
        let mut cache = cache(3);
        for start in 0..50 {
            insert(
                &mut cache,
                BASE,
                &[start, start + 1, start + 2, start + 3, start + 4],
            );
            assert!(cache.used_bytes() <= 30);
            let longest = hits(&mut cache, BASE, &[start, start + 1, start + 2, start + 3]);
            assert_eq!(
                longest, 3,
                "a chain longer than the cache keeps its beginning"
            );
        }
        let mut none: PrefixCache = PrefixCache::new(5, 10);
        insert(&mut none, BASE, &[1]);
        assert_eq!(none.used_bytes(), 0);
    }

    #[test]
    fn blocks_in_use_are_passed_over() {
        let mut cache = cache(2);
        insert(&mut cache, BASE, &[1]);
        let held = cache.lookup(BASE, &tokens(&[1]));
        insert(&mut cache, BASE, &[2]);
        insert(&mut cache, BASE, &[3]);
        assert_eq!(hits(&mut cache, BASE, &[1]), 1, "older, but held");
        assert_eq!(hits(&mut cache, BASE, &[2]), 0);
        drop(held);
        insert(&mut cache, BASE, &[4]);
        insert(&mut cache, BASE, &[5]);
        assert_eq!(
            hits(&mut cache, BASE, &[1]),
            0,
            "free to go once nobody holds it"
        );
    }

    #[test]
    fn what_is_cached_is_not_made_again() {
        let mut cache = cache(10);
        insert(&mut cache, BASE, &[1, 2]);
        let mut made = Vec::new();
        cache.insert(BASE, &tokens(&[1, 2, 3]), |index| {
            made.push(index);
            computed(&[1, 2, 3])
        });
        assert_eq!(made, [2]);
    }
}
