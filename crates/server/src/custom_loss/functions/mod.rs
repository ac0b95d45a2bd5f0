//! What a graph may call, and how calls find their parameters.
//!
//! The tables of the modules below are the whole list. A line of theirs is
//!
//! ```text
//! function("tm", "clamp clip", "input min? max?", clamp)
//! ```
//!
//! where it may be called from, its names there, its parameters, and what it does. Where: `t` is
//! `torch`, `m` a method of a tensor, `f` `torch.nn.functional`, `o` the operators of Python, `n` its
//! `math`, `s` `torch.special`, `l` `torch.linalg`, `b` its built-in functions. A parameter with `?`
//! may be missing or None; with `!` it has to be missing, None or False, because nothing here does
//! what it asks for; with `*` it takes all positional arguments that are left. `|` separates names
//! of the same parameter.

mod arithmetic;
mod create;
mod elementwise;
mod indexing;
mod losses;
mod numbers;
mod reduce;
mod shape;

use tinkrs_types::InvalidInput;

use super::program::Operand;
use super::value::{Number, Value};
use tinkrs_autodiff::{Dtype, Error, Id, Tape, Tensor};

/// The result of a call.
type Result<T = Value> = std::result::Result<T, Error>;

/// A function that graphs may call.
pub(super) struct Function {
    spaces: &'static str,
    names: &'static str,
    parameters: &'static str,
    /// Whether it changes its first argument, in PyTorch. Here it makes a new one.
    pub(super) in_place: bool,
    run: fn(&mut Call<'_>) -> Result,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Function").field(&self.names).finish()
    }
}

const fn function(
    spaces: &'static str,
    names: &'static str,
    parameters: &'static str,
    run: fn(&mut Call<'_>) -> Result,
) -> Function {
    Function {
        spaces,
        names,
        parameters,
        in_place: false,
        run,
    }
}

/// Finds a function by the name that a graph calls it by.
pub(super) fn find(is_method: bool, target: &str) -> Option<&'static Function> {
    const SPACES: [(&str, char); 10] = [
        // The longer ones first: each is cut off where it fits.
        ("torch.nn.functional.", 'f'),
        ("torch._C._nn.", 'f'),
        ("torch._C._special.special_", 's'),
        ("torch.special.", 's'),
        ("torch._C._linalg.linalg_", 'l'),
        ("torch.functional.", 't'),
        ("torch.", 't'),
        ("operator.", 'o'),
        ("math.", 'n'),
        ("builtins.", 'b'),
    ];
    const TABLES: [&[Function]; 8] = [
        elementwise::TABLE,
        arithmetic::TABLE,
        reduce::TABLE,
        indexing::TABLE,
        shape::TABLE,
        create::TABLE,
        losses::TABLE,
        numbers::TABLE,
    ];
    let (space, name) = if is_method {
        ('m', target)
    } else {
        let found = SPACES
            .iter()
            .find_map(|(prefix, space)| Some((*space, target.strip_prefix(prefix)?)));
        found.unwrap_or(('b', target))
    };
    TABLES.into_iter().flatten().find(|function| {
        function.spaces.contains(space) && function.names.split(' ').any(|known| known == name)
    })
}

impl Function {
    /// Puts arguments in the order of the parameters.
    pub(super) fn bind(
        &self,
        args: Vec<Operand>,
        named: Vec<(&str, Operand)>,
    ) -> std::result::Result<Vec<Option<Operand>>, InvalidInput> {
        let parameters: Vec<Parameter> = self.parameters().collect();
        let mut bound: Vec<Option<Operand>> = vec![None; parameters.len()];
        let rest_at = parameters.iter().position(Parameter::is_rest);
        let mut rest = Vec::new();
        for (index, arg) in args.into_iter().enumerate() {
            if rest_at.is_some_and(|start| index >= start) {
                rest.push(arg);
            } else if let Some(slot) = bound.get_mut(index) {
                *slot = Some(arg);
            } else {
                let allowed = format!("up to {} arguments", parameters.len());
                return Err(InvalidInput::new("args", index + 1, allowed));
            }
        }
        if let (Some(start), false) = (rest_at, rest.is_empty()) {
            // `view(2, 3)` and `view((2, 3))` are the same.
            let only = rest.len() == 1 && !matches!(rest[0], Operand::Literal(_));
            bound[start] = Some(if only {
                rest.swap_remove(0)
            } else {
                Operand::List(rest)
            });
        }
        for (name, value) in named {
            let mut free = parameters.iter().zip(&bound);
            match free.position(|(parameter, value)| parameter.is(name) && value.is_none()) {
                Some(index) => bound[index] = Some(value),
                None => {
                    let allowed = format!("the parameters of this operation: {}", self.described());
                    let found = format!("a parameter `{name}`");
                    return Err(InvalidInput::new("kwargs", found, allowed));
                }
            }
        }
        for (parameter, value) in parameters.iter().zip(&mut bound) {
            match value {
                None if parameter.is_required() => {
                    let found = format!("no `{}`", parameter.name());
                    let allowed = format!("the parameters of this operation: {}", self.described());
                    return Err(InvalidInput::new("args", found, allowed));
                }
                Some(Operand::Literal(Value::None)) if !parameter.is_required() => *value = None,
                Some(given) if parameter.is_refused() && !is_false(given) => {
                    let found = format!("a value for `{}`", parameter.name());
                    let allowed = "none: this server does not support it";
                    return Err(InvalidInput::new("kwargs", found, allowed));
                }
                _ => {}
            }
        }
        Ok(bound)
    }

    pub(super) fn call(&self, mut call: Call<'_>) -> Result {
        (self.run)(&mut call)
    }

    fn parameters(&self) -> impl Iterator<Item = Parameter> {
        self.parameters.split_whitespace().map(Parameter)
    }

    fn described(&self) -> String {
        let taken = self
            .parameters()
            .filter(|parameter| !parameter.is_refused());
        let names: Vec<_> = taken.map(|parameter| parameter.name()).collect();
        names.join(", ")
    }
}

fn is_false(operand: &Operand) -> bool {
    *operand == Operand::Literal(Value::Number(Number::Bool(false)))
}

/// A parameter as a table writes it.
#[derive(Clone, Copy)]
struct Parameter(&'static str);

impl Parameter {
    fn names(self) -> std::str::Split<'static, char> {
        self.0.trim_matches(['*', '?', '!']).split('|')
    }

    fn name(self) -> &'static str {
        self.names().next().unwrap_or_default()
    }

    fn is(self, name: &str) -> bool {
        // PyTorch calls the first argument of a method `self` and that of a function `input`.
        self.names().any(|known| known == name) || (self.name() == "input" && name == "self")
    }

    fn is_rest(&self) -> bool {
        self.0.starts_with('*')
    }

    fn is_refused(self) -> bool {
        self.0.ends_with('!')
    }

    fn is_required(self) -> bool {
        !self.0.ends_with(['?', '!'])
    }
}

/// A call under way: the arguments in the order of the parameters, and the tape to compute on.
pub(super) struct Call<'a> {
    tape: &'a mut Tape,
    function: &'static Function,
    arguments: Vec<Option<Value>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        tape: &'a mut Tape,
        function: &'static Function,
        arguments: Vec<Option<Value>>,
    ) -> Self {
        Self {
            tape,
            function,
            arguments,
        }
    }

    /// Returns an argument, unless it is missing or None.
    fn value(&self, index: usize) -> Option<&Value> {
        let value = self.arguments.get(index)?.as_ref();
        value.filter(|value| **value != Value::None)
    }

    fn wrong<T>(&self, index: usize, expected: &str) -> Result<T> {
        let name = self.function.parameters().nth(index).map(Parameter::name);
        let found = self.value(index).map_or("nothing", Value::kind);
        Err(Error::Kind(format!(
            "`{}` is {found}, expected {expected}",
            name.unwrap_or_default()
        )))
    }

    /// Returns an argument that has to be a tensor.
    fn tensor(&self, index: usize) -> Result<Id> {
        match self.value(index) {
            Some(Value::Tensor(id)) => Ok(*id),
            _ => self.wrong(index, "a tensor"),
        }
    }

    /// Returns an argument that may be a number too.
    fn operand(&mut self, index: usize) -> Result<Id> {
        match self.value(index) {
            Some(Value::Tensor(id)) => Ok(*id),
            Some(Value::Number(number)) => {
                let tensor = number.tensor();
                self.tape.constant(tensor)
            }
            _ => self.wrong(index, "a tensor or a number"),
        }
    }

    fn numbers(&self) -> Option<(Number, Number)> {
        match (self.value(0), self.value(1)) {
            (Some(Value::Number(a)), Some(Value::Number(b))) => Some((*a, *b)),
            _ => None,
        }
    }

    fn number(&self, index: usize) -> Result<Option<f64>> {
        match self.value(index) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(number.float())),
            Some(_) => self.wrong(index, "a number"),
        }
    }

    fn int(&self, index: usize) -> Result<Option<i64>> {
        match self.value(index) {
            None => Ok(None),
            Some(Value::Number(number)) => match number.int() {
                Some(number) => Ok(Some(number)),
                None => self.wrong(index, "a whole number"),
            },
            Some(_) => self.wrong(index, "a whole number"),
        }
    }

    fn flag(&self, index: usize) -> Result<bool> {
        match self.value(index) {
            None => Ok(false),
            Some(Value::Number(Number::Bool(flag))) => Ok(*flag),
            Some(_) => self.wrong(index, "True or False"),
        }
    }

    /// Returns whole numbers: one, or a list of them.
    fn ints(&self, index: usize) -> Result<Option<Vec<i64>>> {
        let int = |value: &Value| match value {
            Value::Number(number) => number.int(),
            _ => None,
        };
        let ints = match self.value(index) {
            None => return Ok(None),
            Some(Value::List(items)) => items.iter().map(int).collect(),
            Some(one) => int(one).map(|one| vec![one]),
        };
        match ints {
            Some(ints) => Ok(Some(ints)),
            None => self.wrong(index, "whole numbers"),
        }
    }

    fn text(&self, index: usize) -> Result<Option<&str>> {
        match self.value(index) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => self.wrong(index, "a text"),
        }
    }

    fn dtype(&self, index: usize) -> Result<Option<Dtype>> {
        match self.value(index) {
            None => Ok(None),
            Some(Value::Dtype(dtype)) => Ok(Some(*dtype)),
            Some(_) => self.wrong(index, "a dtype"),
        }
    }

    /// Returns the axes that an argument names, all of them if it is missing.
    fn axes(&self, index: usize, rank: usize) -> Result<Vec<usize>> {
        match self.ints(index)? {
            None => Ok((0..rank).collect()),
            Some(axes) => {
                let axes = axes.into_iter().map(|axis| axis_of(axis, rank));
                let mut axes = axes.collect::<Result<Vec<_>>>()?;
                axes.sort_unstable();
                axes.dedup();
                axes.retain(|axis| *axis < rank);
                Ok(axes)
            }
        }
    }

    fn axis(&self, index: usize, rank: usize) -> Result<Option<usize>> {
        self.int(index)?.map(|axis| axis_of(axis, rank)).transpose()
    }

    fn list(&self, index: usize) -> Result<Vec<Value>> {
        match self.value(index) {
            Some(Value::List(items)) => Ok(items.clone()),
            _ => self.wrong(index, "a list"),
        }
    }

    fn constant(&mut self, value: f64) -> Result<Id> {
        self.tape.constant(Tensor::scalar(value, Dtype::Float))
    }

    fn rank(&self, id: Id) -> usize {
        self.tape.shape(id).len()
    }
}

/// Counts an axis from the start. Those of a scalar are 0 and -1, as in PyTorch.
fn axis_of(axis: i64, rank: usize) -> Result<usize> {
    let count = rank.max(1) as i64;
    let from_start = if axis < 0 { axis + count } else { axis };
    if (0..count).contains(&from_start) {
        Ok(from_start as usize)
    } else {
        Err(Error::Kind(format!(
            "there is no dimension {axis} in a tensor of rank {rank}"
        )))
    }
}
