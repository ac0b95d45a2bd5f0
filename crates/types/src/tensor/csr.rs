//! Compressed sparse rows: which cells of a two-dimensional tensor are listed.

use super::{TensorData, cell_count};
use crate::InvalidInput;
use crate::error::elements;

/// Where the listed values of a sparse tensor stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrIndices {
    /// Row pointers: one more than there are rows, from 0 to the number of listed values.
    pub crow: Vec<i64>,
    /// The column of each listed value.
    pub col: Vec<i64>,
}

/// Describes listed cells, which are in row-major order.
pub(super) fn of_cells(listed: &[usize], [rows, columns]: [usize; 2]) -> CsrIndices {
    let mut crow = vec![0; rows + 1];
    for cell in listed {
        crow[cell / columns + 1] += 1;
    }
    for row in 0..rows {
        crow[row + 1] += crow[row];
    }
    let col = listed.iter().map(|cell| (cell % columns) as i64).collect();
    CsrIndices { crow, col }
}

/// Returns the cells that do not hold `pad`.
pub(super) fn listed_cells<T: PartialEq + Copy>(values: &[T], pad: T) -> Vec<usize> {
    (0..values.len())
        .filter(|cell| values[*cell] != pad)
        .collect()
}

/// Returns the values of some cells.
pub(super) fn pick<T: Copy>(values: &[T], cells: &[usize]) -> Vec<T> {
    cells.iter().map(|cell| values[*cell]).collect()
}

/// Fills the cells that are not listed with `pad`.
pub(super) fn scatter<T: Copy>(values: &[T], csr: &CsrIndices, shape: &[usize], pad: T) -> Vec<T> {
    let (rows, columns) = (shape[0], shape[1]);
    let mut dense = vec![pad; rows * columns];
    for row in 0..rows {
        for listed in csr.crow[row] as usize..csr.crow[row + 1] as usize {
            dense[row * columns + csr.col[listed] as usize] = values[listed];
        }
    }
    dense
}

/// Checks what every reader of a sparse tensor relies on, so that none has to check again.
pub(super) fn check(
    listed: usize,
    indices: &CsrIndices,
    shape: [usize; 2],
) -> Result<(), InvalidInput> {
    let [rows, columns] = shape;
    if cell_count(&shape)? > TensorData::MAX_SPARSE_CELLS {
        let allowed = format!("at most {} cells", TensorData::MAX_SPARSE_CELLS);
        return Err(InvalidInput::new(
            "shape",
            format_args!("{shape:?}"),
            allowed,
        ));
    }
    let CsrIndices { crow, col } = indices;
    if crow.len() != rows + 1 {
        return Err(InvalidInput::new(
            "sparse_crow_indices",
            elements(crow.len()),
            format!("{}, one more than there are rows", rows + 1),
        ));
    }
    if col.len() != listed {
        return Err(InvalidInput::new(
            "sparse_col_indices",
            elements(col.len()),
            format!("{listed}, one for each listed value"),
        ));
    }
    if crow[0] != 0 || crow[rows] != listed as i64 || crow.windows(2).any(|pair| pair[0] > pair[1])
    {
        return Err(InvalidInput::new(
            "sparse_crow_indices",
            "row pointers out of order",
            format!("rising from 0 to {listed}, the number of listed values"),
        ));
    }
    match col
        .iter()
        .find(|column| !(0..columns as i64).contains(*column))
    {
        Some(column) => Err(InvalidInput::new(
            "sparse_col_indices",
            format_args!("column {column}"),
            format!("0 to {}", columns.saturating_sub(1)),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_tensor_that_does_not_fit_together_is_refused_by_name() {
        let sparse = |crow: &[i64], col: &[i64]| {
            let indices = CsrIndices {
                crow: crow.to_vec(),
                col: col.to_vec(),
            };
            TensorData::sparse(vec![1_i64, 2], indices, [2, 3])
        };
        assert!(sparse(&[0, 1, 2], &[0, 2]).is_ok());
        let cases: [(&[i64], &[i64], &str); 6] = [
            (&[0, 2], &[0, 1], "sparse_crow_indices"),
            (&[0, 1, 2], &[0], "sparse_col_indices"),
            (&[1, 1, 2], &[0, 1], "sparse_crow_indices"),
            (&[0, 2, 1], &[0, 1], "sparse_crow_indices"),
            (&[0, 1, 2], &[0, 3], "sparse_col_indices"),
            (&[0, 1, 2], &[-1, 0], "sparse_col_indices"),
        ];
        for (crow, col, field) in cases {
            assert_eq!(
                sparse(crow, col).unwrap_err().field(),
                field,
                "{crow:?} {col:?}"
            );
        }
    }

    #[test]
    fn a_sparse_tensor_of_absurd_size_is_refused_before_it_is_made_dense() {
        let empty = |rows: usize, shape| {
            let indices = CsrIndices {
                crow: vec![0; rows],
                col: vec![],
            };
            TensorData::sparse(Vec::<i64>::new(), indices, shape)
        };
        assert!(empty(2, [1, TensorData::MAX_SPARSE_CELLS]).is_ok());
        for (rows, shape) in [
            (2, [1, TensorData::MAX_SPARSE_CELLS + 1]),
            (2, [1, usize::MAX]),
            (0, [usize::MAX, 0]),
        ] {
            assert_eq!(
                empty(rows, shape).unwrap_err().field(),
                "shape",
                "{shape:?}"
            );
        }
    }
}
