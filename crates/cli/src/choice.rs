//! Options whose values are names.

use serde::de::DeserializeOwned;

/// Reads a name that a library's type has, written with `-` or `_`. The error lists the names.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let name = text.replace('-', "_");
    let read = serde_json::from_value(serde_json::Value::String(name));
    read.map_err(|error| error.to_string().replace('`', ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_recipes::evaluate::Check;
    use tinkrs_recipes::rl::Baseline;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert_eq!(read("group-mean"), Ok(Baseline::GroupMean));
        assert_eq!(read("group_mean"), Ok(Baseline::GroupMean));
        let error = read::<Check>("regex").unwrap_err();
        assert!(error.contains("regex"), "{error}");
        assert!(error.contains("exact, words, contains, number"), "{error}");
    }
}
