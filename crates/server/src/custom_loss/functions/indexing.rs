//! Picking parts: `x[...]` and its relatives.

use super::{Call, Function, Result, axis_of, function};
use crate::custom_loss::limits;
use crate::custom_loss::value::{Number, Value};
use tinkrs_autodiff::{Binary, Cells, Dtype, Error, Id, Lines, size, strides, together};

pub(super) const TABLE: &[Function] = &[
    function("o", "getitem", "input index", getitem),
    function("tm", "gather", "input dim index", gather),
    function("tm", "index_select", "input dim index", |c| {
        let (x, index) = (c.tensor(0)?, c.tensor(2)?);
        let axis = c.axis(1, c.rank(x))?.unwrap_or(0);
        c.picked(x, axis, index).map(Value::Tensor)
    }),
    function("tm", "masked_select", "input mask", |c| {
        let (x, mask) = (c.tensor(0)?, c.tensor(1)?);
        c.masked(x, mask).map(Value::Tensor)
    }),
    function("m", "select", "input dim index", |c| {
        let x = c.tensor(0)?;
        let axis = c.axis(1, c.rank(x))?.unwrap_or(0);
        let Some(index) = c.int(2)? else {
            return c.wrong(2, "a whole number");
        };
        c.row(x, axis, index).map(Value::Tensor)
    }),
    function("tm", "narrow", "input dim start length", |c| {
        let x = c.tensor(0)?;
        let axis = c.axis(1, c.rank(x))?.unwrap_or(0);
        let (Some(start), Some(length)) = (c.int(2)?, c.int(3)?) else {
            return c.wrong(2, "whole numbers");
        };
        let bounds =
            [start, start.saturating_add(length), 1].map(|n| Value::Number(Number::Int(n)));
        c.slice(x, axis, &bounds).map(Value::Tensor)
    }),
    function("tm", "diff", "input n! dim?", |c| {
        let x = c.tensor(0)?;
        let axis = match c.axis(2, c.rank(x))? {
            Some(axis) => axis,
            None => axis_of(-1, c.rank(x))?,
        };
        let int = |number| Value::Number(Number::Int(number));
        let later = c.slice(x, axis, &[int(1), Value::None, Value::None])?;
        let earlier = c.slice(x, axis, &[Value::None, int(-1), Value::None])?;
        c.tape
            .binary(Binary::Sub, later, earlier)
            .map(Value::Tensor)
    }),
    function("tm", "flip", "input *dims", |c| {
        let mut x = c.tensor(0)?;
        for axis in c.axes(1, c.rank(x))? {
            let length = c.tape.shape(x).get(axis).copied().unwrap_or(1);
            x = c.along(x, axis, &(0..length).rev().collect::<Vec<_>>())?;
        }
        Ok(Value::Tensor(x))
    }),
    function("tm", "roll", "input shifts dims?", roll),
    function("tm", "chunk", "input chunks dim?", |c| {
        let (x, chunks) = (c.tensor(0)?, c.int(1)?.unwrap_or(0));
        let axis = c.axis(2, c.rank(x))?.unwrap_or(0);
        let length = c.tape.shape(x).get(axis).copied().unwrap_or(1);
        match usize::try_from(chunks) {
            Ok(chunks) if chunks > 0 => c.split(x, axis, length.div_ceil(chunks).max(1)),
            _ => c.wrong(1, "a number above 0"),
        }
    }),
    function(
        "tm",
        "split",
        "input split_size|split_size_or_sections dim?",
        |c| {
            let (x, each) = (c.tensor(0)?, c.int(1)?.unwrap_or(0));
            let axis = c.axis(2, c.rank(x))?.unwrap_or(0);
            match usize::try_from(each) {
                Ok(each) if each > 0 => c.split(x, axis, each),
                _ => c.wrong(1, "a number above 0"),
            }
        },
    ),
    function("tm", "unbind", "input dim?", |c| {
        let x = c.tensor(0)?;
        let axis = c.axis(1, c.rank(x))?.unwrap_or(0);
        let length = c.tape.shape(x).get(axis).copied().unwrap_or(0);
        if length > limits::ITEMS {
            return Err(Error::Size(format!("{length} parts are too many")));
        }
        let rows = (0..length).map(|index| c.row(x, axis, index as i64).map(Value::Tensor));
        rows.collect::<Result<_>>().map(Value::List)
    }),
];

impl Call<'_> {
    /// Takes these places along an axis, for all others.
    fn along(&mut self, x: Id, axis: usize, places: &[usize]) -> Result<Id> {
        let mut shape = self.tape.shape(x).to_vec();
        if shape.is_empty() {
            let reason = "a scalar has no parts".to_owned();
            return Err(Error::Kind(reason));
        }
        let lines = Lines::new(&shape, axis);
        shape[axis] = places.len();
        self.tape.check_size(size(&shape))?;
        let mut cells = Vec::with_capacity(size(&shape));
        for outer in 0..lines.outer {
            for place in places {
                let start = (outer * lines.length + place) * lines.inner;
                cells.extend((start..start + lines.inner).map(|cell| cell as u32));
            }
        }
        self.tape.take(x, cells, shape)
    }

    fn row(&mut self, x: Id, axis: usize, index: i64) -> Result<Id> {
        let length = self.tape.shape(x).get(axis).copied().unwrap_or(0);
        let place = place(index, length)?;
        let row = self.along(x, axis, &[place])?;
        let mut shape = self.tape.shape(row).to_vec();
        shape.remove(axis);
        self.tape.reshape(row, shape)
    }

    fn slice(&mut self, x: Id, axis: usize, bounds: &[Value; 3]) -> Result<Id> {
        let length = self.tape.shape(x).get(axis).copied().unwrap_or(0);
        let places = slice_places(bounds, length)?;
        self.along(x, axis, &places)
    }

    fn split(&mut self, x: Id, axis: usize, each: usize) -> Result {
        let length = self.tape.shape(x).get(axis).copied().unwrap_or(1);
        if length.div_ceil(each) > limits::ITEMS {
            return Err(Error::Size("so many parts are too many".to_owned()));
        }
        let places: Vec<usize> = (0..length).collect();
        let parts = places.chunks(each).map(|part| self.along(x, axis, part));
        let parts = parts.map(|part| part.map(Value::Tensor));
        parts.collect::<Result<_>>().map(Value::List)
    }

    /// Takes the places that a tensor of whole numbers lists.
    fn picked(&mut self, x: Id, axis: usize, index: Id) -> Result<Id> {
        let length = self.tape.shape(x).get(axis).copied().unwrap_or(0);
        let listed = self.tape.tensor(index);
        if listed.dtype != Dtype::Int {
            let reason = "an index has to hold whole numbers: call .long()".to_owned();
            return Err(Error::Kind(reason));
        }
        let places = listed
            .values
            .iter()
            .map(|index| place(*index as i64, length));
        let places = places.collect::<Result<Vec<_>>>()?;
        let inner = listed.shape.clone();
        let rows = self.along(x, axis, &places)?;
        let mut shape = self.tape.shape(rows).to_vec();
        shape.splice(axis..=axis, inner);
        self.tape.reshape(rows, shape)
    }

    /// Takes the cells where a mask is true, one after the other.
    fn masked(&mut self, x: Id, mask: Id) -> Result<Id> {
        if self.tape.dtype(mask) != Dtype::Bool {
            let reason = "a mask has to hold truth values: compare it, as in mask != 0";
            return Err(Error::Kind(reason.to_owned()));
        }
        let shape = together(self.tape.shape(x), self.tape.shape(mask))?;
        self.tape.check_size(size(&shape))?;
        let [in_x, in_mask] = [x, mask].map(|id| Cells::broadcast(self.tape.shape(id), &shape));
        let is_set = |cell: &usize| self.tape.tensor(mask).values[in_mask.at(*cell)] != 0.0;
        let set = (0..size(&shape)).filter(is_set);
        let cells: Vec<_> = set.map(|cell| in_x.at(cell) as u32).collect();
        let count = cells.len();
        self.tape.take(x, cells, vec![count])
    }
}

fn getitem(c: &mut Call<'_>) -> Result {
    let index = c.value(1).cloned().unwrap_or(Value::None);
    let x = match c.value(0) {
        Some(Value::Tensor(x)) => *x,
        Some(Value::List(items)) => return item(items, &index),
        _ => return c.wrong(0, "a tensor or a tuple"),
    };
    if let Value::Tensor(mask) = index
        && c.tape.dtype(mask) == Dtype::Bool
    {
        if c.tape.shape(mask) != c.tape.shape(x) {
            let (mask, x) = (c.tape.shape(mask), c.tape.shape(x));
            let reason = format!("a mask of shape {mask:?} for a tensor of shape {x:?}");
            return Err(if mask.len() == x.len() {
                Error::Size(reason)
            } else {
                Error::Kind(format!("{reason}: they have to be the same"))
            });
        }
        return c.masked(x, mask).map(Value::Tensor);
    }
    let items = match index {
        Value::List(items) => items,
        one => vec![one],
    };
    let used = items
        .iter()
        .filter(|item| !matches!(item, Value::None | Value::Ellipsis))
        .count();
    let rank = c.rank(x);
    if used > rank {
        let reason = format!("{used} indices for a tensor of rank {rank}");
        return Err(Error::Kind(reason));
    }
    let (mut x, mut axis) = (x, 0);
    let mut tensors = 0;
    for item in items {
        match item {
            Value::Ellipsis => axis += rank - used,
            Value::None => {
                let mut shape = c.tape.shape(x).to_vec();
                shape.insert(axis, 1);
                x = c.tape.reshape(x, shape)?;
                axis += 1;
            }
            Value::Slice(bounds) => {
                x = c.slice(x, axis, &bounds)?;
                axis += 1;
            }
            Value::Number(number) => match number.int() {
                Some(index) => x = c.row(x, axis, index)?,
                None => return c.wrong(1, "whole numbers, slices, None, `...` or a tensor"),
            },
            Value::Tensor(index) => {
                tensors += 1;
                if tensors > 1 {
                    let reason = "only one dimension can be indexed by a tensor";
                    return Err(Error::Kind(reason.to_owned()));
                }
                x = c.picked(x, axis, index)?;
                axis += c.rank(index);
            }
            _ => return c.wrong(1, "whole numbers, slices, None, `...` or a tensor"),
        }
    }
    Ok(Value::Tensor(x))
}

/// An item of a tuple, or a part of it.
fn item(items: &[Value], index: &Value) -> Result {
    match index {
        Value::Number(number) if number.int().is_some() => {
            let index = number.int().unwrap_or_default();
            // How many items there are does not depend on sizes.
            let place = place(index, items.len());
            let place = place.map_err(|failure| Error::Kind(failure.reason()))?;
            Ok(items[place].clone())
        }
        Value::Slice(bounds) => {
            let places = slice_places(bounds, items.len())?;
            Ok(Value::List(
                places
                    .into_iter()
                    .map(|place| items[place].clone())
                    .collect(),
            ))
        }
        _ => Err(Error::Kind(
            "a tuple is indexed by a whole number or a slice".to_owned(),
        )),
    }
}

fn place(index: i64, length: usize) -> Result<usize> {
    let from_start = if index < 0 {
        index.saturating_add(length as i64)
    } else {
        index
    };
    let place = usize::try_from(from_start)
        .ok()
        .filter(|place| *place < length);
    place.ok_or_else(|| Error::Size(format!("there is no index {index} among {length}")))
}

/// The places that `start:stop:step` stands for.
fn slice_places(bounds: &[Value; 3], length: usize) -> Result<Vec<usize>> {
    let number = |value: &Value| match value {
        Value::None => Ok(None),
        Value::Number(number) if number.int().is_some() => Ok(number.int()),
        other => {
            let reason = format!(
                "a bound of a slice is {}, expected a whole number",
                other.kind()
            );
            Err(Error::Kind(reason))
        }
    };
    let bound = |value: Option<i64>, missing: usize| match value {
        None => missing,
        Some(value) if value < 0 => {
            usize::try_from(value.saturating_add(length as i64)).unwrap_or(0)
        }
        Some(value) => usize::try_from(value).unwrap_or(length).min(length),
    };
    let [start, stop, step] = bounds;
    let (start, stop) = (bound(number(start)?, 0), bound(number(stop)?, length));
    match number(step)?.map_or(Ok(1), usize::try_from) {
        Ok(step) if step > 0 => Ok((start..stop.max(start)).step_by(step).collect()),
        _ => Err(Error::Kind(
            "the step of a slice has to be above 0".to_owned(),
        )),
    }
}

/// `y[i][j] = x[index[i][j]][j]`, for an axis of 0.
fn gather(c: &mut Call<'_>) -> Result {
    let (x, index) = (c.tensor(0)?, c.tensor(2)?);
    let axis = c.axis(1, c.rank(x))?.unwrap_or(0);
    let shape = c.tape.shape(x).to_vec();
    let listed = c.tape.tensor(index).clone();
    if listed.dtype != Dtype::Int || listed.rank() != shape.len() || shape.is_empty() {
        let reason = "an index has to hold whole numbers and have the rank of the tensor";
        return Err(Error::Kind(reason.to_owned()));
    }
    let fits = |(other, (index, size)): (usize, (&usize, &usize))| other == axis || index <= size;
    if !listed.shape.iter().zip(&shape).enumerate().all(fits) {
        let reason = format!("an index of shape {:?} for {shape:?}", listed.shape);
        return Err(Error::Size(reason));
    }
    let (of_index, of_x) = (strides(&listed.shape), strides(&shape));
    let cell = |(cell, index): (usize, &f64)| {
        let place = place(*index as i64, shape[axis])?;
        let coordinates = (0..shape.len()).map(|other| {
            if other == axis {
                place * of_x[axis]
            } else {
                cell / of_index[other] % listed.shape[other] * of_x[other]
            }
        });
        Ok(coordinates.sum::<usize>() as u32)
    };
    let cells = listed
        .values
        .iter()
        .enumerate()
        .map(cell)
        .collect::<Result<_>>()?;
    c.tape.take(x, cells, listed.shape).map(Value::Tensor)
}

fn roll(c: &mut Call<'_>) -> Result {
    let x = c.tensor(0)?;
    let (Some(shift), rank) = (c.int(1)?, c.rank(x)) else {
        return c.wrong(1, "a whole number");
    };
    let axis = match c.axis(2, rank)? {
        Some(axis) => axis,
        None if rank == 1 => 0,
        None => return c.wrong(2, "a dimension"),
    };
    let length = c.tape.shape(x).get(axis).copied().unwrap_or(1);
    let from = |place: usize| {
        (place as i64)
            .wrapping_sub(shift)
            .rem_euclid(length.max(1) as i64)
    };
    let places: Vec<_> = (0..length).map(|place| from(place) as usize).collect();
    c.along(x, axis, &places).map(Value::Tensor)
}
