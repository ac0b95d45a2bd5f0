//! Text into HTML.

/// Writes a text so that HTML shows it as it is, in elements and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            // Control characters are not allowed in a page at all.
            control if control.is_control() => escaped.push('\u{FFFD}'),
            other => escaped.push(other),
        }
    }
    escaped
}
