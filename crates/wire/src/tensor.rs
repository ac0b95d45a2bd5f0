//! `Tensor` messages and tensor data, both ways.

use crate::little_endian as le;
use crate::proto::{DType, SparseCsr, Tensor, tensor::Encoding};
use bytes::Bytes;
use tinkrs_types::tensor::{CsrIndices, TensorValues};
use tinkrs_types::{InvalidInput, TensorData};

/// Writes a tensor, lending its values.
pub(crate) fn to_proto(tensor: TensorData) -> Tensor {
    let shape = tensor
        .shape()
        .unwrap_or_default()
        .iter()
        .map(|size| *size as i64)
        .collect();
    let csr = tensor.csr().cloned();
    let (dtype, values) = values_to_bytes(tensor.into_values());
    let encoding = match csr {
        None => Encoding::Dense(values),
        Some(CsrIndices { crow, col }) => Encoding::SparseCsr(SparseCsr {
            values,
            crow_indices: le::lend(crow),
            col_indices: le::lend(col),
        }),
    };
    Tensor {
        encoding: Some(encoding),
        dtype: dtype.into(),
        shape,
    }
}

/// Reads a tensor.
pub(crate) fn from_proto(tensor: Tensor) -> Result<TensorData, InvalidInput> {
    let dtype = tensor.dtype();
    let shape = read_shape(&tensor.shape)?;
    match tensor.encoding {
        None => Err(InvalidInput::new(
            "encoding",
            "nothing",
            "dense or sparse_csr values",
        )),
        Some(Encoding::Dense(bytes)) => {
            let values = values_from_bytes(dtype, &bytes)?;
            if shape.is_empty() {
                return Ok(TensorData::without_shape(values));
            }
            TensorData::with_shape(values, shape)
        }
        Some(Encoding::SparseCsr(csr)) => {
            let shape: [usize; 2] = shape.try_into().map_err(|shape: Vec<usize>| {
                InvalidInput::new("shape", format_args!("{shape:?}"), "two dimensions")
            })?;
            let indices = CsrIndices {
                crow: le::read("crow_indices", &csr.crow_indices)?,
                col: le::read("col_indices", &csr.col_indices)?,
            };
            TensorData::sparse(values_from_bytes(dtype, &csr.values)?, indices, shape)
        }
    }
}

/// Lends values as bytes, with their element type.
pub(crate) fn values_to_bytes(values: TensorValues) -> (DType, Bytes) {
    match values {
        TensorValues::F32(values) => (DType::DtypeFloat32, le::lend(values)),
        TensorValues::I64(values) => (DType::DtypeInt64, le::lend(values)),
    }
}

/// Reads values, widening the narrow element types.
pub(crate) fn values_from_bytes(dtype: DType, bytes: &[u8]) -> Result<TensorValues, InvalidInput> {
    const FIELD: &str = "values";
    match dtype {
        DType::DtypeFloat32 => le::read::<f32>(FIELD, bytes).map(Into::into),
        DType::DtypeInt64 => le::read::<i64>(FIELD, bytes).map(Into::into),
        DType::DtypeInt32 => le::read_i32_as_i64(FIELD, bytes).map(Into::into),
        DType::DtypeBfloat16 => le::read_bf16_as_f32(FIELD, bytes).map(Into::into),
        DType::DtypeUnspecified => Err(InvalidInput::new(
            "dtype",
            "none",
            "FLOAT32, INT64, INT32 or BFLOAT16",
        )),
    }
}

/// Reads a shape, none of whose sizes may be negative.
pub(crate) fn read_shape(shape: &[i64]) -> Result<Vec<usize>, InvalidInput> {
    shape
        .iter()
        .map(|size| usize::try_from(*size))
        .collect::<Result<_, _>>()
        .map_err(|_| InvalidInput::new("shape", format_args!("{shape:?}"), "sizes of 0 or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_element_types_are_widened() {
        let tensor = |dtype: DType, bytes: &'static [u8]| Tensor {
            encoding: Some(Encoding::Dense(Bytes::from_static(bytes))),
            dtype: dtype.into(),
            shape: vec![],
        };
        let halves = from_proto(tensor(DType::DtypeBfloat16, &[0x80, 0x3f])).unwrap();
        assert_eq!(halves.as_f32(), Some(&[1.0][..]));
        let ints = from_proto(tensor(DType::DtypeInt32, &[254, 255, 255, 255])).unwrap();
        assert_eq!(ints.as_i64(), Some(&[-2][..]));
        assert_eq!(
            from_proto(tensor(DType::DtypeUnspecified, &[]))
                .unwrap_err()
                .field(),
            "dtype"
        );
    }

    #[test]
    fn a_tensor_without_values_or_with_a_negative_size_is_refused() {
        assert_eq!(
            from_proto(Tensor::default()).unwrap_err().field(),
            "encoding"
        );
        let negative = Tensor {
            encoding: Some(Encoding::Dense(Bytes::new())),
            dtype: DType::DtypeFloat32.into(),
            shape: vec![-1],
        };
        assert_eq!(from_proto(negative).unwrap_err().field(), "shape");
    }
}
