//! The record of what was computed, from which gradients are taken.
//!
//! Everything that a loss does to tensors comes down to the few operations of [`Op`]. The two that
//! move cells, `Take` and `Scatter`, are each other's gradient, and cover slices, transposes,
//! repetitions and sums alike.
//!
//! Gradients are taken from the last operation to the first: for `y = f(x)` and a loss `L`,
//! `dL/dx += dL/dy · df/dx`. A `dL/dy` of exactly 0 passes nothing on, even where the slope is not
//! finite: a cell that was masked out contributes 0, whatever it holds. (PyTorch makes that case
//! not-a-number.)

use crate::Error;
use crate::element::{Binary, Unary};
use crate::tensor::{Cells, Dtype, Lines, Tensor, size, together};

/// Where a tensor stands on the tape.
pub type Id = usize;

/// How a tensor was made, as far as gradients are concerned.
#[derive(Debug)]
enum Op {
    /// From outside, or in a way that has no gradient.
    Leaf,
    Unary(Unary, Id),
    Binary(Binary, Id, Id),
    /// From `on` where the mask is not 0, else from `off`.
    Select {
        mask: Id,
        on: Id,
        off: Id,
    },
    /// `y[i] = x[cells[i]]`.
    Take {
        x: Id,
        cells: Vec<u32>,
    },
    /// `y[cells[i]] += x[i]`.
    Scatter {
        x: Id,
        cells: Vec<u32>,
    },
    /// The same cells under another shape.
    Reshape(Id),
    Sum(Id),
    /// Running sums along lines.
    Cumulate(Id, Lines),
    /// All cells of several tensors, one after the other.
    Join(Vec<Id>),
}

#[derive(Debug)]
struct Node {
    tensor: Tensor,
    op: Op,
    needs_gradient: bool,
}

/// The dimensions that a tensor may have.
const MAX_RANK: usize = 6;

/// Tensors in the order in which they were computed, and how.
#[derive(Debug)]
pub struct Tape {
    nodes: Vec<Node>,
    /// The numbers that all tensors hold, and how many they may hold.
    cells: usize,
    max_cells: usize,
}

impl Default for Tape {
    /// Makes a tape without a limit.
    fn default() -> Self {
        Self::with_limit(usize::MAX)
    }
}

/// Operations that fail have recorded nothing. Their errors say which shapes or kinds of numbers do
/// not fit.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
impl Tape {
    /// Makes a tape whose tensors may hold this many numbers together.
    pub fn with_limit(max_cells: usize) -> Self {
        Self {
            nodes: Vec::new(),
            cells: 0,
            max_cells,
        }
    }

    /// Returns a tensor.
    pub fn tensor(&self, id: Id) -> &Tensor {
        &self.nodes[id].tensor
    }

    /// Returns the sizes of a tensor's dimensions.
    pub fn shape(&self, id: Id) -> &[usize] {
        &self.tensor(id).shape
    }

    /// Returns what kind of numbers a tensor holds.
    pub fn dtype(&self, id: Id) -> Dtype {
        self.tensor(id).dtype
    }

    /// Returns whether a tensor depends on a variable.
    pub fn needs_gradient(&self, id: Id) -> bool {
        self.nodes[id].needs_gradient
    }

    /// Adds what gradients are taken by.
    pub fn variable(&mut self, tensor: Tensor) -> Result<Id, Error> {
        self.record(tensor, Op::Leaf, true)
    }

    /// Adds a tensor without a gradient.
    pub fn constant(&mut self, tensor: Tensor) -> Result<Id, Error> {
        self.record(tensor, Op::Leaf, false)
    }

    /// Copies a tensor; no gradient passes through the copy.
    pub fn detach(&mut self, x: Id) -> Result<Id, Error> {
        self.constant(self.tensor(x).clone())
    }

    /// Applies a function to each element.
    pub fn unary(&mut self, function: Unary, x: Id) -> Result<Id, Error> {
        let Tensor { shape, values, .. } = self.tensor(x);
        self.check_size(values.len())?;
        let dtype = match function {
            Unary::Neg | Unary::Abs | Unary::Relu => self.dtype(x),
            _ => Dtype::Float,
        };
        let values = values.iter().map(|x| function.value(*x)).collect();
        let tensor = Tensor::new(shape.clone(), values, dtype);
        self.push(tensor, Op::Unary(function, x), &[x])
    }

    /// Applies a function to each pair of elements. Sizes of 1 are repeated.
    pub fn binary(&mut self, function: Binary, a: Id, b: Id) -> Result<Id, Error> {
        let mut dtype = self.dtype(a).max(self.dtype(b));
        if dtype == Dtype::Bool && function == Binary::Sub {
            let reason = "truth values have no difference: call .float() first";
            return Err(Error::Kind(reason.to_owned()));
        }
        if function == Binary::Div {
            dtype = Dtype::Float;
        }
        let mut tensor = self.zip(a, b, |a, b| function.value(a, b))?;
        tensor.dtype = dtype;
        if dtype == Dtype::Bool {
            // Two truth values add up to one.
            tensor
                .values
                .iter_mut()
                .for_each(|value| *value = value.min(1.0));
        }
        self.push(tensor, Op::Binary(function, a, b), &[a, b])
    }

    /// Computes a function of two tensors that has no gradient, such as a comparison.
    pub fn step(
        &mut self,
        a: Id,
        b: Id,
        dtype: Dtype,
        function: impl Fn(f64, f64) -> f64,
    ) -> Result<Id, Error> {
        let mut tensor = self.zip(a, b, function)?;
        tensor.dtype = dtype;
        self.constant(tensor)
    }

    /// Computes a function of one tensor that has no gradient.
    pub fn map(&mut self, x: Id, dtype: Dtype, function: impl Fn(f64) -> f64) -> Result<Id, Error> {
        self.check_size(self.tensor(x).len())?;
        let mut tensor = self.tensor(x).clone();
        tensor.dtype = dtype;
        tensor.values.iter_mut().for_each(|x| *x = function(*x));
        self.constant(tensor)
    }

    /// Has the cells counted as another kind of numbers. Gradients stay with fractions only.
    pub fn cast(&mut self, x: Id, dtype: Dtype) -> Result<Id, Error> {
        match (self.dtype(x), dtype) {
            (from, to) if from == to => Ok(x),
            (_, Dtype::Bool) => self.map(x, dtype, |x| f64::from(u8::from(x != 0.0))),
            (_, Dtype::Int) => self.map(x, dtype, f64::trunc),
            (_, Dtype::Float) => self.map(x, dtype, |x| x),
        }
    }

    /// Picks from `on` where the mask is not 0, and from `off` elsewhere.
    pub fn select(&mut self, mask: Id, on: Id, off: Id) -> Result<Id, Error> {
        let sides = together(self.shape(on), self.shape(off))?;
        let shape = together(self.shape(mask), &sides)?;
        self.check_size(size(&shape))?;
        let [in_mask, in_on, in_off] = [mask, on, off].map(|id| self.cells(id, &shape));
        let [masks, ons, offs] = [mask, on, off].map(|id| &self.tensor(id).values);
        let pick = |cell| {
            if masks[in_mask.at(cell)] != 0.0 {
                ons[in_on.at(cell)]
            } else {
                offs[in_off.at(cell)]
            }
        };
        let values = (0..size(&shape)).map(pick).collect();
        let dtype = self.dtype(on).max(self.dtype(off));
        let tensor = Tensor::new(shape, values, dtype);
        self.push(tensor, Op::Select { mask, on, off }, &[on, off])
    }

    /// Makes a tensor of the listed cells of another.
    pub fn take(&mut self, x: Id, cells: Vec<u32>, shape: Vec<usize>) -> Result<Id, Error> {
        self.check_size(cells.len())?;
        let Tensor { values, dtype, .. } = self.tensor(x);
        let values = cells.iter().map(|cell| values[*cell as usize]).collect();
        let tensor = Tensor::new(shape, values, *dtype);
        self.push(tensor, Op::Take { x, cells }, &[x])
    }

    /// Adds each cell to the one listed for it.
    pub fn scatter(&mut self, x: Id, cells: Vec<u32>, shape: Vec<usize>) -> Result<Id, Error> {
        self.check_size(size(&shape))?;
        let mut values = vec![0.0; size(&shape)];
        for (value, cell) in self.tensor(x).values.iter().zip(&cells) {
            values[*cell as usize] += value;
        }
        let tensor = Tensor::new(shape, values, self.dtype(x).max(Dtype::Int));
        self.push(tensor, Op::Scatter { x, cells }, &[x])
    }

    /// Gives the same cells another shape, which must have as many.
    pub fn reshape(&mut self, x: Id, shape: Vec<usize>) -> Result<Id, Error> {
        self.check_size(self.tensor(x).len())?;
        let Tensor { values, dtype, .. } = self.tensor(x).clone();
        self.push(Tensor::new(shape, values, dtype), Op::Reshape(x), &[x])
    }

    /// Adds all cells.
    /// Adds all cells.
    pub fn sum(&mut self, x: Id) -> Result<Id, Error> {
        let tensor = self.tensor(x);
        let dtype = tensor.dtype.max(Dtype::Int);
        let total = Tensor::scalar(tensor.values.iter().sum(), dtype);
        self.push(total, Op::Sum(x), &[x])
    }

    /// Adds up along lines, cell by cell.
    pub fn cumulate(&mut self, x: Id, lines: Lines) -> Result<Id, Error> {
        self.check_size(self.tensor(x).len())?;
        let mut tensor = self.tensor(x).clone();
        tensor.dtype = tensor.dtype.max(Dtype::Int);
        for line in 0..lines.count() {
            for step in 1..lines.length {
                let before = tensor.values[lines.cell(line, step - 1)];
                tensor.values[lines.cell(line, step)] += before;
            }
        }
        self.push(tensor, Op::Cumulate(x, lines), &[x])
    }

    /// Puts the cells of several tensors one after the other.
    pub fn join(&mut self, parts: Vec<Id>) -> Result<Id, Error> {
        let tensors = || parts.iter().map(|part| self.tensor(*part));
        self.check_size(tensors().map(Tensor::len).sum())?;
        let values: Vec<_> = tensors()
            .flat_map(|part| part.values.iter().copied())
            .collect();
        let dtype = tensors().map(|part| part.dtype).max();
        let tensor = Tensor::new(vec![values.len()], values, dtype.unwrap_or(Dtype::Float));
        let from = parts.clone();
        self.push(tensor, Op::Join(parts), &from)
    }

    /// Returns the derivatives of the scalar at `loss` by each variable that it depends on.
    pub fn gradients(&self, loss: Id) -> Vec<Option<Vec<f64>>> {
        let mut slopes: Vec<Option<Vec<f64>>> = vec![None; self.nodes.len()];
        slopes[loss] = Some(vec![1.0]);
        for id in (0..=loss).rev() {
            if matches!(self.nodes[id].op, Op::Leaf) {
                continue;
            }
            // Taken, not borrowed: nothing reads it again, and long sequences make it large.
            if let Some(slope) = slopes[id].take() {
                self.propagate(
                    id,
                    &slope,
                    &mut Slopes {
                        tape: self,
                        slopes: &mut slopes,
                    },
                );
            }
        }
        slopes
    }

    fn propagate(&self, id: Id, slope: &[f64], into: &mut Slopes<'_>) {
        let Tensor { shape, values, .. } = self.tensor(id);
        match &self.nodes[id].op {
            Op::Leaf => {}
            Op::Unary(function, x) => {
                let xs = &self.tensor(*x).values;
                into.add(
                    *x,
                    &Cells::Same,
                    |cell| chain(slope[cell], || function.slope(xs[cell], values[cell])),
                    slope.len(),
                );
            }
            Op::Binary(function, a, b) => {
                let (in_a, in_b) = (self.cells(*a, shape), self.cells(*b, shape));
                let (left, right) = (&self.tensor(*a).values, &self.tensor(*b).values);
                let slopes_at = |cell: usize| {
                    let (a, b) = (left[in_a.at(cell)], right[in_b.at(cell)]);
                    function.slopes(a, b, values[cell])
                };
                let by_a = |cell: usize| chain(slope[cell], || slopes_at(cell).0);
                into.add(*a, &in_a, by_a, slope.len());
                let by_b = |cell: usize| chain(slope[cell], || slopes_at(cell).1);
                into.add(*b, &in_b, by_b, slope.len());
            }
            Op::Select { mask, on, off } => {
                let (in_mask, masks) = (self.cells(*mask, shape), &self.tensor(*mask).values);
                for (side, wanted) in [(*on, true), (*off, false)] {
                    let cells = self.cells(side, shape);
                    let picked = |cell: usize| {
                        let is_picked = (masks[in_mask.at(cell)] != 0.0) == wanted;
                        if is_picked { slope[cell] } else { 0.0 }
                    };
                    into.add(side, &cells, picked, slope.len());
                }
            }
            Op::Take { x, cells } => {
                let at = |index: usize| cells[index] as usize;
                into.add_at(*x, at, |index| slope[index], cells.len());
            }
            Op::Scatter { x, cells } => {
                let back = |index: usize| slope[cells[index] as usize];
                into.add(*x, &Cells::Same, back, cells.len());
            }
            Op::Reshape(x) => into.add(*x, &Cells::Same, |cell| slope[cell], slope.len()),
            Op::Sum(x) => {
                let count = self.tensor(*x).len();
                into.add(*x, &Cells::Same, |_| slope[0], count);
            }
            Op::Cumulate(x, lines) => {
                let mut behind = slope.to_vec();
                for line in 0..lines.count() {
                    for step in (1..lines.length).rev() {
                        let later = behind[lines.cell(line, step)];
                        behind[lines.cell(line, step - 1)] += later;
                    }
                }
                into.add(*x, &Cells::Same, |cell| behind[cell], behind.len());
            }
            Op::Join(parts) => {
                let mut start = 0;
                for part in parts {
                    let count = self.tensor(*part).len();
                    into.add(*part, &Cells::Same, |cell| slope[start + cell], count);
                    start += count;
                }
            }
        }
    }

    fn zip(&self, a: Id, b: Id, function: impl Fn(f64, f64) -> f64) -> Result<Tensor, Error> {
        let shape = together(self.shape(a), self.shape(b))?;
        let size = size(&shape);
        self.check_size(size)?;
        let (in_a, in_b) = (self.cells(a, &shape), self.cells(b, &shape));
        let (left, right) = (&self.tensor(a).values, &self.tensor(b).values);
        let values = (0..size).map(|cell| function(left[in_a.at(cell)], right[in_b.at(cell)]));
        let values = values.collect();
        Ok(Tensor::new(shape, values, Dtype::Float))
    }

    fn cells(&self, id: Id, out: &[usize]) -> Cells {
        Cells::broadcast(self.shape(id), out)
    }

    fn push(&mut self, tensor: Tensor, op: Op, from: &[Id]) -> Result<Id, Error> {
        let needs_gradient =
            tensor.dtype == Dtype::Float && from.iter().any(|id| self.needs_gradient(*id));
        let op = if needs_gradient { op } else { Op::Leaf };
        self.record(tensor, op, needs_gradient)
    }

    fn record(&mut self, tensor: Tensor, op: Op, needs_gradient: bool) -> Result<Id, Error> {
        self.check_size(tensor.len())?;
        if tensor.rank() > MAX_RANK {
            let reason = format!("a tensor may have {MAX_RANK} dimensions");
            return Err(Error::Kind(reason));
        }
        self.cells += tensor.len();
        self.nodes.push(Node {
            tensor,
            op,
            needs_gradient,
        });
        Ok(self.nodes.len() - 1)
    }

    /// Refuses a tensor that would take more memory than the tape may use. Called before the memory is.
    pub fn check_size(&self, cells: usize) -> Result<(), Error> {
        if cells.saturating_add(self.cells) <= self.max_cells {
            return Ok(());
        }
        Err(Error::Size(format!(
            "needs {cells} more numbers, after {} so far; a loss may hold {} for one datum",
            self.cells, self.max_cells
        )))
    }
}

/// `dL/dy` of each tensor so far, where there is one.
struct Slopes<'a> {
    tape: &'a Tape,
    slopes: &'a mut Vec<Option<Vec<f64>>>,
}

impl Slopes<'_> {
    /// Adds `part(i)`, for `i` below `count`, to the cell of `to` that `i` was made from.
    fn add(&mut self, to: Id, cells: &Cells, part: impl Fn(usize) -> f64, count: usize) {
        self.add_at(to, |index| cells.at(index), part, count);
    }

    fn add_at(
        &mut self,
        to: Id,
        at: impl Fn(usize) -> usize,
        part: impl Fn(usize) -> f64,
        count: usize,
    ) {
        if !self.tape.needs_gradient(to) {
            return;
        }
        let zeros = || vec![0.0; self.tape.tensor(to).len()];
        let slots = self.slopes[to].get_or_insert_with(zeros);
        for index in 0..count {
            slots[at(index)] += part(index);
        }
    }
}

fn chain(slope: f64, inner: impl FnOnce() -> f64) -> f64 {
    if slope == 0.0 { 0.0 } else { slope * inner() }
}
