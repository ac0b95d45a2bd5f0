//! Tables of plain text that fit the terminal.
//!
//! A table that is too wide is made narrower where it is widest, and its cells go on in the next
//! line: nothing is cut off. The first column, which people copy, is never broken.

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
        let widths = self.widths(width);
        line(&mut text, &self.headers, &widths);
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        line(&mut text, &rule, &widths);
        for row in &self.rows {
            line(&mut text, row, &widths);
        }
        text
    }

    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths = vec![0; self.headers.len()];
        for row in self.rows.iter().chain([&self.headers]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let Some(limit) = limit else { return widths };
        let gaps = GAP * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > limit {
            let widest = widths.iter_mut().skip(1).max();
            match widest.filter(|width| **width > NARROW) {
                Some(width) => *width -= 1,
                None => break,
            }
        }
        widths
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

/// Breaks a text into lines: at the last space that fits, else anywhere.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut rest: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    while rest.len() > width {
        let space = rest[..=width].iter().rposition(|c| *c == ' ');
        let (end, next) = match space {
            Some(space) if space > 0 => (space, space + 1),
            _ => (width.max(1), width.max(1)),
        };
        lines.push(rest[..end].iter().collect());
        rest.drain(..next);
    }
    lines.push(rest.into_iter().collect());
    lines
}

/// Replaces what a terminal would act on, since names come from others.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
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
    fn a_narrow_terminal_breaks_cells_and_loses_nothing() {
        let expected = "\
2 runs
Run ID     Base Model   Status
---------  -----------  ------
a:train:0  Qwen/Qwen3-  OK
           8B
b          a model      Failed
           with a name
           of many
           words
";
        assert_eq!(sample().text(Some(30)), expected);
        // Too narrow for anything: the first column is still whole.
        assert!(sample().text(Some(1)).contains("a:train:0"));
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
        table.row(["\u{1b}[2Jgone\n"]);
        assert_eq!(
            table.text(None),
            "Name\n---------\n\u{fffd}[2Jgone\u{fffd}\n"
        );
    }
}
