use std::borrow::Cow;
use std::fmt;

/// A value that the API cannot take: which field, what it held, what it may hold.
///
/// ```
/// use tinkrs_types::{Datum, ModelInput};
///
/// let error = Datum::supervised(ModelInput::from_tokens([1, 2]), [2, 3], [1.0]).unwrap_err();
/// assert_eq!(error.to_string(), "`weights`: found 1 element, expected 2, one for each target token");
/// assert_eq!(error.at_datum(3).to_string(),
///     "datum 3: `weights`: found 1 element, expected 2, one for each target token");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidInput {
    datum: Option<usize>,
    field: Cow<'static, str>,
    found: String,
    allowed: Cow<'static, str>,
}

impl InvalidInput {
    /// Describes a bad `field` by what it held and what it may hold.
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        found: impl fmt::Display,
        allowed: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            datum: None,
            field: field.into(),
            found: found.to_string(),
            allowed: allowed.into(),
        }
    }

    /// Adds the position in the batch of the datum at fault.
    #[must_use]
    pub fn at_datum(mut self, index: usize) -> Self {
        self.datum = Some(index);
        self
    }

    /// Puts the field inside another one, as in `prompt.chunks[2].tokens`.
    #[must_use]
    pub fn inside(mut self, outer: &str) -> Self {
        self.field = Cow::Owned(format!("{outer}.{}", self.field));
        self
    }

    /// Returns the position in the batch of the datum at fault, if the fault is in one.
    pub fn datum(&self) -> Option<usize> {
        self.datum
    }

    /// Returns the name of the field at fault.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns a description of what was found there.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Returns a description of what is allowed there.
    pub fn allowed(&self) -> &str {
        &self.allowed
    }
}

impl fmt::Display for InvalidInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.datum {
            write!(f, "datum {index}: ")?;
        }
        write!(
            f,
            "`{}`: found {}, expected {}",
            self.field, self.found, self.allowed
        )
    }
}

impl std::error::Error for InvalidInput {}

/// `1 element`, `2 elements`: a count that reads well inside a message.
pub(crate) fn elements(count: usize) -> String {
    if count == 1 {
        "1 element".to_owned()
    } else {
        format!("{count} elements")
    }
}
