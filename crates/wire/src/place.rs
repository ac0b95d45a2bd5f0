//! Which member of a JSON text a place in it belongs to.

/// Where in a nest of members the reader is.
enum Level {
    /// In an object, at the member of this name, once there is one.
    Object(Option<String>),
    /// In a list, at the item of this number.
    List(usize),
}

/// Names the member that holds the last byte of `text`, the beginning of a JSON text:
/// `sampling_params.stop[2]`. The outermost value has no name.
///
/// ```text
/// {"a": {"b": [1, "x      a.b[1]
/// ```
pub(crate) fn member(text: &[u8]) -> Option<String> {
    let mut levels = Vec::new();
    let mut rest = text.iter().enumerate();
    // The last text that ended, until it is known to be a name.
    let mut last = None;
    while let Some((start, byte)) = rest.next() {
        match byte {
            b'"' => {
                let mut escaped = false;
                let end = rest.find(|(_, byte)| {
                    let ends = **byte == b'"' && !escaped;
                    escaped = **byte == b'\\' && !escaped;
                    ends
                });
                last = end.map(|(end, _)| &text[start..=end]);
            }
            b'{' => levels.push(Level::Object(None)),
            b'[' => levels.push(Level::List(0)),
            b'}' | b']' => drop(levels.pop()),
            b':' => {
                if let (Some(Level::Object(name)), Some(found)) = (levels.last_mut(), last.take()) {
                    *name = serde_json::from_slice(found).ok();
                }
            }
            b',' => match levels.last_mut() {
                Some(Level::Object(name)) => *name = None,
                Some(Level::List(index)) => *index += 1,
                None => {}
            },
            _ => {}
        }
    }
    let mut path = String::new();
    for level in levels {
        match level {
            Level::Object(Some(name)) if path.is_empty() => path = name,
            Level::Object(Some(name)) => path = format!("{path}.{name}"),
            Level::List(index) => path = format!("{path}[{index}]"),
            Level::Object(None) => {}
        }
    }
    (!path.is_empty()).then_some(path)
}

/// Returns a text up to a place, in lines and columns from 1, as `serde_json` counts them.
pub(crate) fn up_to(text: &[u8], line: usize, column: usize) -> &[u8] {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    &text[..(before + column).min(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_member_is_named_with_those_around_it() {
        let cases = [
            ("", None),
            ("[", Some("[0]")),
            (r#"{"a"#, None),
            (r#"{"a": 1"#, Some("a")),
            (r#"{"a": 1, "#, None),
            (r#"{"a": {"b": [1, "x"#, Some("a.b[1]")),
            (r#"{"a": {"b": [1, {"c": 2}"#, Some("a.b[1]")),
            (r#"{"a": {"b": 1}"#, Some("a")),
            (r#"{"a": ["},{:[\"", 7"#, Some("a[1]")),
            (r#"{"q\"\u0041": -"#, Some("q\"A")),
            ("}}]]", None),
        ];
        for (text, expected) in cases {
            assert_eq!(member(text.as_bytes()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn places_are_counted_in_lines_and_columns_from_one() {
        assert_eq!(up_to(b"ab\ncd\nef", 2, 1), b"ab\nc");
        assert_eq!(up_to(b"ab", 1, 2), b"ab");
        assert_eq!(up_to(b"ab", 7, 9), b"ab");
    }
}
