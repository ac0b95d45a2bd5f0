//! The JSON form of a tensor: flat numbers whose element type is a member beside them.

use super::{CsrIndices, Dtype, TensorData, TensorValues};
use crate::InvalidInput;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The members of a tensor in JSON.
#[derive(Serialize, Deserialize)]
pub(super) struct Json {
    data: Numbers,
    dtype: Dtype,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    shape: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sparse_crow_indices: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sparse_col_indices: Option<Vec<i64>>,
}

impl From<TensorData> for Json {
    fn from(tensor: TensorData) -> Self {
        let dtype = tensor.dtype();
        let (crow, col) = tensor.csr.map(|csr| (csr.crow, csr.col)).unzip();
        let data = match tensor.values {
            TensorValues::F32(values) => Numbers::Float(values),
            TensorValues::I64(values) => Numbers::Int(values),
        };
        Self {
            data,
            dtype,
            shape: tensor.shape,
            sparse_crow_indices: crow,
            sparse_col_indices: col,
        }
    }
}

impl TryFrom<Json> for TensorData {
    type Error = InvalidInput;

    fn try_from(json: Json) -> Result<Self, InvalidInput> {
        let values: TensorValues = match (json.data, json.dtype) {
            (Numbers::Float(values), Dtype::Float32) => values.into(),
            (Numbers::Int(values), Dtype::Int64) => values.into(),
            (Numbers::Int(values), Dtype::Float32) => values
                .iter()
                .map(|value| *value as f32)
                .collect::<Vec<_>>()
                .into(),
            (Numbers::Float(values), Dtype::Int64) => {
                let whole = |value: &f32| value.fract() == 0.0;
                if let Some(value) = values.iter().find(|value| !whole(value)) {
                    return Err(InvalidInput::new(
                        "data",
                        value,
                        "whole numbers, as dtype is int64",
                    ));
                }
                values
                    .iter()
                    .map(|value| *value as i64)
                    .collect::<Vec<_>>()
                    .into()
            }
        };
        match (
            json.sparse_crow_indices,
            json.sparse_col_indices,
            json.shape,
        ) {
            (None, None, None) => Ok(Self::without_shape(values)),
            (None, None, Some(shape)) => Self::with_shape(values, shape),
            (Some(crow), Some(col), Some(shape)) => {
                let shape: [usize; 2] = shape.try_into().map_err(|shape: Vec<usize>| {
                    InvalidInput::new(
                        "shape",
                        format_args!("{shape:?}"),
                        "two dimensions for a sparse tensor",
                    )
                })?;
                Self::sparse(values, CsrIndices { crow, col }, shape)
            }
            (Some(_), Some(_), None) => Err(InvalidInput::new(
                "shape",
                "nothing",
                "the dense shape of a sparse tensor",
            )),
            (Some(_), None, _) => Err(InvalidInput::new(
                "sparse_col_indices",
                "nothing",
                "one column a listed value",
            )),
            (None, Some(_), _) => Err(InvalidInput::new(
                "sparse_crow_indices",
                "nothing",
                "one pointer a row, and one more",
            )),
        }
    }
}

/// A JSON array of numbers, read before its element type is known.
#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Float(Vec<f32>),
    Int(Vec<i64>),
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Numbers, A::Error> {
                let mut whole: Vec<i64> = Vec::new();
                let mut real: Vec<f32> = Vec::new();
                while let Some(number) = items.next_element::<Number>()? {
                    match number {
                        Number::Int(value) if real.is_empty() => whole.push(value),
                        Number::Int(value) => real.push(value as f32),
                        Number::Float(value) => {
                            if real.is_empty() {
                                real = whole.drain(..).map(|value| value as f32).collect();
                            }
                            real.push(value as f32);
                        }
                    }
                }
                Ok(if real.is_empty() {
                    Numbers::Int(whole)
                } else {
                    Numbers::Float(real)
                })
            }
        }

        deserializer.deserialize_seq(Collect)
    }
}

enum Number {
    Int(i64),
    Float(f64),
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;

        impl Visitor<'_> for One {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Int(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                i64::try_from(value).map(Number::Int).map_err(|_| {
                    E::custom(format_args!(
                        "{value} does not fit in a signed 64-bit integer"
                    ))
                })
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Float(value))
            }
        }

        deserializer.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_keeps_the_difference_between_no_shape_and_a_shape() {
        for body in [
            json!({"data": [1, 2], "dtype": "int64"}),
            json!({"data": [1, 2], "dtype": "int64", "shape": [2]}),
            json!({"data": [1.0, 2.5], "dtype": "float32", "shape": [1, 2]}),
            json!({"data": [7], "dtype": "int64", "shape": [2, 3],
                   "sparse_crow_indices": [0, 0, 1], "sparse_col_indices": [2]}),
        ] {
            let tensor: TensorData = serde_json::from_value(body.clone()).unwrap();
            assert_eq!(serde_json::to_value(&tensor).unwrap(), body);
        }
    }

    #[test]
    fn json_numbers_take_the_declared_dtype() {
        let read = |body| serde_json::from_value::<TensorData>(body);
        let tensor = read(json!({"data": [1, 0.5, 2], "dtype": "float32"})).unwrap();
        assert_eq!(tensor.as_f32(), Some(&[1.0, 0.5, 2.0][..]));
        let error = read(json!({"data": [1.5], "dtype": "int64"})).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("found 1.5, expected whole numbers"),
            "{error}"
        );
        assert!(read(json!({"data": [null], "dtype": "float32"})).is_err());
        assert!(read(json!({"data": [1], "dtype": "float64"})).is_err());
    }
}
