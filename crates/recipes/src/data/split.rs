/// Data to train on and, apart from them, to evaluate with. A slice alone is all to train on.
#[derive(Debug)]
pub struct Split<'d, T> {
    /// To train on.
    pub train: &'d [T],
    /// Never trained on.
    pub eval: &'d [T],
}

impl<T> Clone for Split<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Split<'_, T> {}

impl<'d, T> From<&'d [T]> for Split<'d, T> {
    fn from(train: &'d [T]) -> Self {
        Self { train, eval: &[] }
    }
}

impl<'d, T> From<&'d Vec<T>> for Split<'d, T> {
    fn from(train: &'d Vec<T>) -> Self {
        train.as_slice().into()
    }
}

impl<'d, T, const N: usize> From<&'d [T; N]> for Split<'d, T> {
    fn from(train: &'d [T; N]) -> Self {
        train.as_slice().into()
    }
}
