//! Shapes: asking for them, changing them, joining tensors.

use super::{Call, Function, Result, axis_of, function};
use crate::custom_loss::value::{Number, Value};
use tinkrs_autodiff::{Cells, Error, Id, size, strides, together, walk};

pub(super) const TABLE: &[Function] = &[
    function("b", "getattr", "input name", attribute),
    function("m", "size", "input dim?", |c| {
        let x = c.tensor(0)?;
        match c.axis(1, c.rank(x))? {
            None => Ok(Value::shape(c.tape.shape(x))),
            Some(axis) => match c.tape.shape(x).get(axis) {
                Some(size) => Ok(Value::int(*size)),
                None => Err(Error::Kind("a scalar has no size".to_owned())),
            },
        }
    }),
    function("tm", "numel nelement", "input", |c| {
        let x = c.tensor(0)?;
        Ok(Value::int(c.tape.tensor(x).len()))
    }),
    function("m", "dim ndimension", "input", |c| {
        let x = c.tensor(0)?;
        Ok(Value::int(c.rank(x)))
    }),
    function("m", "view reshape", "input *shape|size", reshape),
    function("t", "reshape", "input shape", reshape),
    function("m", "view_as reshape_as", "input other", |c| {
        let (x, like) = (c.tensor(0)?, c.tensor(1)?);
        let shape = c.tape.shape(like).to_vec();
        c.reshaped(x, shape).map(Value::Tensor)
    }),
    function("tm", "flatten ravel", "input start_dim? end_dim?", |c| {
        let x = c.tensor(0)?;
        let shape = c.tape.shape(x).to_vec();
        let rank = shape.len();
        let start = c.axis(1, rank)?.unwrap_or(0);
        let end = c.axis(2, rank)?.unwrap_or(rank.max(1) - 1);
        let flat = match rank {
            0 => vec![1],
            _ if start > end => return c.wrong(1, "a dimension up to `end_dim`"),
            _ => {
                let middle = size(&shape[start..=end]);
                [&shape[..start], &[middle], &shape[end + 1..]].concat()
            }
        };
        c.reshaped(x, flat).map(Value::Tensor)
    }),
    function("tm", "unsqueeze", "input dim", |c| {
        let x = c.tensor(0)?;
        let axis = match c.int(1)? {
            Some(axis) => axis_of(axis, c.rank(x) + 1)?,
            None => return c.wrong(1, "a dimension"),
        };
        let mut shape = c.tape.shape(x).to_vec();
        shape.insert(axis, 1);
        c.reshaped(x, shape).map(Value::Tensor)
    }),
    function("tm", "squeeze", "input dim?", |c| {
        let x = c.tensor(0)?;
        let axes = c.axes(1, c.rank(x))?;
        let shape = c.tape.shape(x).iter().enumerate();
        let kept = shape.filter(|(axis, size)| **size != 1 || !axes.contains(axis));
        let kept = kept.map(|(_, size)| *size).collect();
        c.reshaped(x, kept).map(Value::Tensor)
    }),
    function("tm", "t", "input", |c| {
        let x = c.tensor(0)?;
        c.reversed(x).map(Value::Tensor)
    }),
    function(
        "tm",
        "transpose swapaxes",
        "input dim0|axis0 dim1|axis1",
        |c| {
            let x = c.tensor(0)?;
            let rank = c.rank(x);
            let (first, second) = (c.axis(1, rank)?, c.axis(2, rank)?);
            let mut order: Vec<_> = (0..rank).collect();
            if let (Some(first), Some(second), true) = (first, second, rank > 0) {
                order.swap(first, second);
            }
            c.permuted(x, &order).map(Value::Tensor)
        },
    ),
    function("tm", "permute", "input *dims", |c| {
        let x = c.tensor(0)?;
        let rank = c.rank(x);
        let order = c.ints(1)?.unwrap_or_default();
        let order = order.into_iter().map(|axis| axis_of(axis, rank));
        let order = order.collect::<Result<Vec<_>>>()?;
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            return c.wrong(1, "every dimension once");
        }
        c.permuted(x, &order).map(Value::Tensor)
    }),
    function("m", "expand", "input *size", |c| {
        let x = c.tensor(0)?;
        let sizes = c.ints(1)?.unwrap_or_default();
        let skipped = sizes.len().checked_sub(c.rank(x));
        let Some(skipped) = skipped else {
            return c.wrong(1, "a size for each dimension");
        };
        let known = c.tape.shape(x);
        let size = |(axis, size): (usize, i64)| match size {
            // As it is.
            -1 => axis.checked_sub(skipped).map(|axis| known[axis]),
            size => usize::try_from(size).ok(),
        };
        let shape: Option<Vec<_>> = sizes.into_iter().enumerate().map(size).collect();
        match shape {
            Some(shape) => c.expanded(x, shape).map(Value::Tensor),
            None => c.wrong(1, "sizes, or -1 for those that stay"),
        }
    }),
    function("m", "expand_as", "input other", |c| {
        let (x, like) = (c.tensor(0)?, c.tensor(1)?);
        let shape = c.tape.shape(like).to_vec();
        c.expanded(x, shape).map(Value::Tensor)
    }),
    function("t", "broadcast_to", "input size", |c| {
        let x = c.tensor(0)?;
        let shape = c.sizes(1)?;
        c.expanded(x, shape).map(Value::Tensor)
    }),
    function(
        "t",
        "cat concat concatenate",
        "tensors dim|axis? out!",
        |c| joined(c, false),
    ),
    function("t", "stack", "tensors dim? out!", |c| joined(c, true)),
];

impl Call<'_> {
    /// Returns sizes, none of them negative.
    pub(super) fn sizes(&self, index: usize) -> Result<Vec<usize>> {
        let sizes = self.ints(index)?.unwrap_or_default();
        let sizes: Option<Vec<_>> = sizes.into_iter().map(|n| usize::try_from(n).ok()).collect();
        match sizes {
            Some(sizes) => Ok(sizes),
            None => self.wrong(index, "sizes"),
        }
    }

    fn reshaped(&mut self, x: Id, shape: Vec<usize>) -> Result<Id> {
        if size(&shape) != self.tape.tensor(x).len() {
            let old = self.tape.shape(x);
            let reason = format!("shape {old:?} cannot become {shape:?}");
            return Err(Error::Size(reason));
        }
        self.tape.reshape(x, shape)
    }

    fn reversed(&mut self, x: Id) -> Result<Id> {
        let order: Vec<_> = (0..self.rank(x)).rev().collect();
        self.permuted(x, &order)
    }

    fn permuted(&mut self, x: Id, order: &[usize]) -> Result<Id> {
        let shape = self.tape.shape(x);
        let steps = strides(shape);
        let steps: Vec<_> = order.iter().map(|axis| steps[*axis]).collect();
        let shape: Vec<_> = order.iter().map(|axis| shape[*axis]).collect();
        self.tape.check_size(size(&shape))?;
        self.tape.take(x, walk(&shape, &steps), shape)
    }

    fn expanded(&mut self, x: Id, shape: Vec<usize>) -> Result<Id> {
        let old = self.tape.shape(x);
        if together(old, &shape)? != shape {
            let reason = format!("shape {old:?} cannot be repeated to {shape:?}");
            return Err(Error::Size(reason));
        }
        self.tape.check_size(size(&shape))?;
        let cells = Cells::broadcast(old, &shape);
        let cells = (0..size(&shape))
            .map(|cell| cells.at(cell) as u32)
            .collect();
        self.tape.take(x, cells, shape)
    }
}

fn attribute(c: &mut Call<'_>) -> Result {
    let name = c.text(1)?.unwrap_or_default().to_owned();
    if let Some(Value::List(pair)) = c.value(0) {
        // What `max(x, dim)` returns has names for its two parts.
        return match (name.as_str(), pair.as_slice()) {
            ("values", [values @ Value::Tensor(_), _]) => Ok(values.clone()),
            ("indices", [_, indices @ Value::Tensor(_)]) => Ok(indices.clone()),
            _ => Err(Error::Kind(format!("there is no attribute `{name}` here"))),
        };
    }
    let x = c.tensor(0)?;
    match name.as_str() {
        "shape" => Ok(Value::shape(c.tape.shape(x))),
        "ndim" => Ok(Value::int(c.rank(x))),
        "dtype" => Ok(Value::Dtype(c.tape.dtype(x))),
        "device" | "layout" => Ok(Value::Place),
        "requires_grad" => Ok(Value::Number(Number::Bool(c.tape.needs_gradient(x)))),
        "T" | "mT" => c.reversed(x).map(Value::Tensor),
        "data" => c.tape.detach(x).map(Value::Tensor),
        _ => Err(Error::Kind(format!(
            "attribute `{name}` of a tensor is not supported in a custom loss"
        ))),
    }
}

fn reshape(c: &mut Call<'_>) -> Result {
    let x = c.tensor(0)?;
    let sizes = c.ints(1)?.unwrap_or_default();
    let count = c.tape.tensor(x).len();
    let known: Vec<_> = sizes
        .iter()
        .filter_map(|n| usize::try_from(*n).ok())
        .collect();
    if sizes.iter().any(|size| *size < -1) || known.len() + 1 < sizes.len() {
        return c.wrong(1, "sizes, of which one may be -1");
    }
    // The size that is left open is whatever makes the count right.
    let open = count.checked_div(size(&known)).unwrap_or(0);
    let shape = sizes
        .iter()
        .map(|size| usize::try_from(*size).unwrap_or(open));
    let shape = shape.collect();
    c.reshaped(x, shape).map(Value::Tensor)
}

/// Joins tensors along a dimension that they have, or along a new one.
fn joined(c: &mut Call<'_>, is_new: bool) -> Result {
    let mut parts = Vec::new();
    for part in c.list(0)? {
        match part {
            Value::Tensor(id) => parts.push(id),
            _ => return c.wrong(0, "a list of tensors"),
        }
    }
    let Some(first) = parts.first() else {
        return c.wrong(0, "at least one tensor");
    };
    let mut shape = c.tape.shape(*first).to_vec();
    let rank = shape.len() + usize::from(is_new);
    if rank == 0 {
        return Err(Error::Kind(
            "scalars cannot be joined: stack them".to_owned(),
        ));
    }
    let axis = c.axis(1, rank)?.unwrap_or(0);
    if is_new {
        shape.insert(axis, 1);
    }
    let mut lengths = Vec::new();
    for part in &parts {
        let mut other = c.tape.shape(*part).to_vec();
        if is_new {
            other.insert(axis.min(other.len()), 1);
        }
        let fits = |(dimension, (a, b)): (usize, (&usize, &usize))| dimension == axis || a == b;
        if other.len() != rank {
            let reason = "tensors of different ranks cannot be joined";
            return Err(Error::Kind(reason.to_owned()));
        }
        if !other.iter().zip(&shape).enumerate().all(fits) {
            let reason = format!("shapes {shape:?} and {other:?} cannot be joined");
            return Err(Error::Size(reason));
        }
        lengths.push(other[axis]);
    }
    shape[axis] = lengths.iter().sum();
    let flat = c.tape.join(parts)?;
    let (outer, inner) = (size(&shape[..axis]), size(&shape[axis + 1..]));
    if outer == 1 {
        return c.tape.reshape(flat, shape).map(Value::Tensor);
    }
    // The parts lie one after the other; their rows have to alternate.
    let mut cells = Vec::with_capacity(size(&shape));
    for row in 0..outer {
        let mut start = 0;
        for length in &lengths {
            let width = length * inner;
            let from = start + row * width;
            cells.extend((from..from + width).map(|cell| cell as u32));
            start += outer * width;
        }
    }
    c.tape.take(flat, cells, shape).map(Value::Tensor)
}
