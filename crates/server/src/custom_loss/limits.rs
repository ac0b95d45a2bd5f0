//! How much of everything an uploaded loss may have.

/// Nodes of a graph. Real losses have tens, and unrolled ones hundreds.
pub(super) const NODES: usize = 4096;
/// Inputs, `logprobs` included; clients have the same limit.
pub(super) const INPUTS: usize = 16;
/// Metrics.
pub(super) const METRICS: usize = 256;
/// Bytes of a loss's name.
pub(super) const NAME_BYTES: usize = 256;
/// Bytes of any text in a graph.
pub(super) const TEXT_BYTES: usize = 256;
/// Items of all the arguments of a node.
pub(super) const ITEMS: usize = 1024;
/// How deep arguments may be nested.
pub(super) const DEPTH: usize = 8;
/// Numbers that all tensors of one run may hold: 512 MiB.
pub(super) const CELLS: usize = 1 << 26;
