//! Aligned columns. Where they are printed is the printer's business.

use crate::escape::printable;
use anstyle::{AnsiColor, Style};

/// How titles look.
pub const TITLE: Style = AnsiColor::Green.on_default().bold();

/// Which edge the cells of a column touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    titles: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<T: AsRef<str>>(titles: &[(T, Align)]) -> Table {
        let titles = titles.iter().map(|(title, align)| (title.as_ref().to_owned(), *align)).collect();
        Table { titles, rows: Vec::new() }
    }

    /// Adds a row; cells are made printable.
    pub fn push<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| printable(cell.as_ref())).collect());
    }

    /// The text, without a line break at its end.
    pub fn render(&self) -> String {
        let widths = self.widths();
        let titles: Vec<String> = self.titles.iter().map(|(title, _)| title.clone()).collect();
        let head = format!("{TITLE}{}{TITLE:#}", self.line(&titles, &widths));
        let lines = self.rows.iter().map(|row| self.line(row, &widths));
        std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.titles[column].0.chars().count()]).max().unwrap_or(0)
        };
        (0..self.titles.len()).map(width).collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let columns = cells.iter().zip(widths).zip(&self.titles);
        // Format's own padding ends at 65535, and a tensor's name need not.
        let space = |cell: &str, width: usize| " ".repeat(width - cell.chars().count().min(width));
        let padded = columns.map(|((cell, width), (_, align))| match align {
            Align::Left => format!("{cell}{}", space(cell, *width)),
            Align::Right => format!("{}{cell}", space(cell, *width)),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_be_of_any_length() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.push(["x".repeat(70_000), "1".to_owned()]);
        assert!(table.render().len() > 140_000);
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        table.push(["a", "1 B", ""]);
        table.push(["größe\u{7}", "12 MB", "x"]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain, "name         size\na             1 B\ngröße\\u{7}  12 MB  x");
    }
}
