//! The JSON form of a tensor: flat numbers whose element type is a member beside them.

use super::{CsrIndices, Dtype, TensorData, TensorValues};
use crate::InvalidInput;
use crate::protocol::JsonNumber;
use crate::protocol::number::not_finite;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The members of a tensor in JSON.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Json {
    #[cfg_attr(feature = "schema", schemars(with = "Vec<JsonNumber>"))]
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
            TensorValues::F32(values) => Numbers::F32(values),
            TensorValues::I64(values) => Numbers::I64(values),
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
            (Numbers::F32(values), Dtype::Float32) => values.into(),
            (Numbers::I64(values), Dtype::Int64) => values.into(),
            (Numbers::F32(values), Dtype::Int64) => {
                whole(values.into_iter().map(f64::from))?.into()
            }
            (Numbers::F64(values), Dtype::Int64) => whole(values.into_iter())?.into(),
            (Numbers::I64(values), Dtype::Float32) => {
                single(values.into_iter().map(|v| v as f64))?.into()
            }
            (Numbers::F64(values), Dtype::Float32) => single(values.into_iter())?.into(),
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

/// Takes numbers as `float32`, if it can hold them.
fn single(values: impl Iterator<Item = f64>) -> Result<Vec<f32>, InvalidInput> {
    values
        .map(|value| match value as f32 {
            single if single.is_finite() || !value.is_finite() => Ok(single),
            _ => Err(InvalidInput::new(
                "data",
                value,
                "numbers that float32 can hold, as dtype is float32",
            )),
        })
        .collect()
}

/// Takes numbers as `int64`, if they are whole and so small that all their digits were read.
fn whole(values: impl Iterator<Item = f64>) -> Result<Vec<i64>, InvalidInput> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    values
        .map(|value| {
            if value.fract() == 0.0 && value.abs() < EXACT {
                return Ok(value as i64);
            }
            let allowed = "whole numbers, as dtype is int64";
            Err(InvalidInput::new("data", value, allowed))
        })
        .collect()
}

/// A JSON array of numbers, read before its element type is known: `I64` if all of them are
/// integers, else `F64`. Only what is written is ever `F32`.
enum Numbers {
    F32(Vec<f32>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // Few digits, unless there is a number that only has a name.
            Self::F32(values) if values.iter().all(|value| value.is_finite()) => {
                values.serialize(serializer)
            }
            Self::F32(values) => {
                serializer.collect_seq(values.iter().copied().map(JsonNumber::from))
            }
            Self::I64(values) => values.serialize(serializer),
            Self::F64(values) => serializer.collect_seq(values.iter().copied().map(JsonNumber)),
        }
    }
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
                let mut real: Vec<f64> = Vec::new();
                while let Some(number) = items.next_element::<Number>()? {
                    match number {
                        Number::Int(value) if real.is_empty() => whole.push(value),
                        Number::Int(value) => real.push(value as f64),
                        Number::Float(value) => {
                            if real.is_empty() {
                                real = whole.drain(..).map(|value| value as f64).collect();
                            }
                            real.push(value);
                        }
                    }
                }
                Ok(if real.is_empty() {
                    Numbers::I64(whole)
                } else {
                    Numbers::F64(real)
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
                f.write_str("a number, `NaN`, `inf` or `-inf`")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Int(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                Ok(i64::try_from(value).map_or(Number::Float(value as f64), Number::Int))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Float(value))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Number, E> {
                let number = not_finite(name).map(Number::Float);
                number.ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
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
            json!({"data": [0.5, "NaN", "-inf"], "dtype": "float32"}),
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
        let tensor = read(json!({"data": [16_777_217.0, -1], "dtype": "int64"})).unwrap();
        assert_eq!(
            tensor.as_i64(),
            Some(&[16_777_217, -1][..]),
            "no digit is lost"
        );
        for (data, dtype) in [
            (json!([1e30]), "int64"),
            (json!([9_007_199_254_740_993_i64, 1.0]), "int64"),
            (json!([u64::MAX]), "int64"),
            (json!(["NaN"]), "int64"),
            (json!([1e300]), "float32"),
        ] {
            let error = read(json!({"data": data, "dtype": dtype})).unwrap_err();
            assert!(error.to_string().contains("`data`"), "{data}: {error}");
        }
        let large = read(json!({"data": [u64::MAX], "dtype": "float32"})).unwrap();
        assert_eq!(large.as_f32(), Some(&[u64::MAX as f32][..]));
        assert!(read(json!({"data": [null], "dtype": "float32"})).is_err());
        assert!(read(json!({"data": [1], "dtype": "float64"})).is_err());
    }
}
