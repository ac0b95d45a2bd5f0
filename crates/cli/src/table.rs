//! Tables of plain text that fit the terminal.
//!
//! A table that is too wide is made narrower where it is widest, and its cells go on in the next
//! line. Words are never broken, since people copy ids and paths: if that is not enough, each row
//! becomes a paragraph with a line for each column.

use crate::output::controls_terminal;

/// The space between columns.
const GAP: usize = 2;
/// No column is made narrower than this.
const NARROW: usize = 8;

/// A table with an optional title.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    title: Option<String>,
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<H: Into<String>>(headers: impl IntoIterator<Item = H>) -> Self {
        Self {
            title: None,
            headers: headers.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// A table of properties and their values.
    pub(crate) fn properties() -> Self {
        Self::new(["Property", "Value"])
    }

    pub(crate) fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(printable(&title.into()));
        self
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells = cells.into_iter().map(|cell| printable(cell.as_ref()));
        self.rows.push(cells.collect());
    }

    /// Lays the table out. A table without rows is only its title, if it has one.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let mut text = String::new();
        if let Some(title) = &self.title {
            text.push_str(title);
            text.push('\n');
            if self.rows.is_empty() {
                return text;
            }
        }
        match self.widths(width) {
            Some(widths) => self.grid(&mut text, &widths),
            None => self.paragraphs(&mut text),
        }
        text
    }

    fn grid(&self, text: &mut String, widths: &[usize]) {
        line(text, &self.headers, widths);
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        line(text, &rule, widths);
        for row in &self.rows {
            line(text, row, widths);
        }
    }

    fn paragraphs(&self, text: &mut String) {
        let names = self.headers.iter().skip(1);
        let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            text.push_str(row.first().map_or("", String::as_str));
            text.push('\n');
            for (name, cell) in self.headers.iter().zip(row).skip(1) {
                let line = format!("{:GAP$}{name:<width$}{:GAP$}{cell}", "", "");
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
    }

    /// Returns how wide each column is, or `None` if the table cannot be made to fit.
    fn widths(&self, limit: Option<usize>) -> Option<Vec<usize>> {
        let mut widths = vec![0; self.headers.len()];
        let mut words = vec![0; self.headers.len()];
        for row in self.rows.iter().chain([&self.headers]) {
            for (column, cell) in row.iter().enumerate().take(widths.len()) {
                let longest = cell.split(' ').map(|word| word.chars().count()).max();
                widths[column] = widths[column].max(cell.chars().count());
                words[column] = words[column].max(longest.unwrap_or(0));
            }
        }
        let gaps = GAP * widths.len().saturating_sub(1);
        while limit.is_some_and(|limit| widths.iter().sum::<usize>() + gaps > limit) {
            let columns = widths.iter_mut().zip(&words).skip(1);
            let wide = columns.filter(|(width, word)| **width > NARROW.max(**word));
            match wide.max_by_key(|(width, _)| **width) {
                Some((width, _)) => *width -= 1,
                // Paragraphs would make two columns no narrower.
                None if words.len() <= 2 => break,
                None => return None,
            }
        }
        Some(widths)
    }
}

/// Appends one row, which may take several lines.
fn line(text: &mut String, cells: &[String], widths: &[usize]) {
    let wrapped: Vec<Vec<String>> = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| wrap(cell, *width))
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..height {
        let mut whole = String::new();
        for (part, width) in wrapped.iter().zip(widths) {
            let part = part.get(row).map_or("", String::as_str);
            whole.push_str(&format!("{part:<width$}{:GAP$}", ""));
        }
        text.push_str(whole.trim_end());
        text.push('\n');
    }
}

/// Breaks a text into lines, between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Replaces what a terminal would act on, since names come from others.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| {
        if controls_terminal(c) { '\u{fffd}' } else { c }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(["Run ID", "Base Model", "Status"]).title("2 runs");
        table.row(["a:train:0", "Qwen/Qwen3-8B", "OK"]);
        table.row(["b", "a model with a name of many words", "Failed"]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let expected = "\
2 runs
Run ID     Base Model                         Status
---------  ---------------------------------  ------
a:train:0  Qwen/Qwen3-8B                      OK
b          a model with a name of many words  Failed
";
        assert_eq!(sample().text(None), expected);
        assert_eq!(sample().text(Some(80)), expected);
    }

    #[test]
    fn a_narrow_terminal_breaks_cells_between_words() {
        let expected = "\
2 runs
Run ID     Base Model       Status
---------  ---------------  ------
a:train:0  Qwen/Qwen3-8B    OK
b          a model with a   Failed
           name of many
           words
";
        assert_eq!(sample().text(Some(34)), expected);
    }

    #[test]
    fn a_terminal_too_narrow_for_words_gets_paragraphs() {
        let expected = "\
2 runs
a:train:0
  Base Model  Qwen/Qwen3-8B
  Status      OK
b
  Base Model  a model with a name of many words
  Status      Failed
";
        assert_eq!(sample().text(Some(30)), expected);
        let mut properties = Table::properties();
        properties.row(["Path", "tinker://run/weights/name"]);
        let text = properties.text(Some(20));
        assert!(
            text.ends_with("Path      tinker://run/weights/name\n"),
            "{text}"
        );
    }

    #[test]
    fn a_table_without_rows_is_its_title() {
        let table = Table::new(["Run ID"]).title("No training runs found");
        assert_eq!(table.text(None), "No training runs found\n");
        assert_eq!(Table::new(["Model"]).text(None), "Model\n-----\n");
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        let mut table = Table::new(["Name"]);
        table.row(["\u{1b}[2Jgone\n\u{202e}"]);
        assert_eq!(
            table.text(None),
            "Name\n----------\n\u{fffd}[2Jgone\u{fffd}\u{fffd}\n"
        );
    }
}
