//! Tables of text that fit a width: columns are aligned, prose and titles are wrapped, and a column that does not fit beside the
//! others goes below its row. Nothing is cut off. Front ends choose the width and how titles look.

use super::printable;

/// The least width that prose is wrapped to.
const PROSE: usize = 24;

/// Between two columns.
const GAP: &str = "  ";

/// The prefix of a cell that goes below its row.
const INDENT: &str = "    ";

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

/// The position and width of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellPlace {
    /// Beside the others.
    Beside(usize),
    /// Below the row.
    Below,
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

    /// The titles of the columns, and which edge their cells touch.
    pub fn titles(&self) -> &[(String, Align)] {
        &self.titles
    }

    /// The rows, a cell for each column from the first one on.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// The text in lines of at most `width` characters, without a line break at its end. Longer words, such as the names of tensors,
    /// stay whole, and the other columns go below them. `title` styles the lines with the titles.
    pub fn render(&self, width: usize, title: &dyn Fn(&str) -> String) -> String {
        let places = self.places(width);
        let titles: Vec<String> = self.titles.iter().map(|(title, _)| title.clone()).collect();
        let mut lines = Vec::new();
        self.lines(&titles, &places, &mut lines);
        lines.iter_mut().for_each(|line| *line = title(line));
        for row in &self.rows {
            self.lines(row, &places, &mut lines);
            self.lines_below(row, &places, width, &mut lines);
        }
        lines.join("\n")
    }

    /// The widths that the contents of each column ask for: the natural one, and the least. Titles of numbers are wrapped, and
    /// numbers are not.
    fn widths(&self, column: usize) -> (usize, usize) {
        let (title, align) = &self.titles[column];
        let cells = || self.rows.iter().filter_map(|row| row.get(column));
        let longest = cells().map(|cell| length(cell)).max().unwrap_or(0);
        let natural = longest.max(length(title));
        match align {
            Align::Right => (natural, longest.max(longest_piece(title))),
            Align::Left => {
                let word = cells().map(|cell| longest_piece(cell)).max().unwrap_or(0).max(length(title));
                (natural, word.max(PROSE.min(natural)))
            }
        }
    }

    fn places(&self, width: usize) -> Vec<CellPlace> {
        let widths: Vec<(usize, usize)> = (0..self.titles.len()).map(|column| self.widths(column)).collect();
        let is_text = |column: usize| self.titles[column].1 == Align::Left;
        let least = |column: usize| widths[column].1;
        let mut beside: Vec<usize> = (0..widths.len()).collect();
        // Prose goes below first, then names, short text and numbers; of the same kind the last.
        let is_prose = |column: usize| is_text(column) && widths[column].1 < widths[column].0;
        while total(beside.iter().map(|&column| least(column))) > width {
            let foldable =
                || beside.iter().copied().filter(|&column| column > 0 && least(column) >= PROSE && is_text(column));
            let text = foldable().rfind(|&column| is_prose(column)).or_else(|| foldable().next_back());
            let others = || beside.iter().copied().filter(|&column| column > 0);
            let short = || others().rfind(|&column| is_text(column)).or_else(|| others().next_back());
            let Some(folded) = text.or_else(short) else { break };
            beside.retain(|&column| column != folded);
        }
        let mut places = vec![CellPlace::Below; widths.len()];
        beside.iter().for_each(|&column| places[column] = CellPlace::Beside(least(column)));
        let mut room = width.saturating_sub(total(beside.iter().map(|&column| least(column))));
        // Free space goes to the columns that lack least, so that as few cells as possible are wrapped.
        beside.sort_by_key(|&column| widths[column].0 - least(column));
        for column in beside {
            let more = room.min(widths[column].0 - least(column));
            places[column] = CellPlace::Beside(least(column) + more);
            room -= more;
        }
        places
    }

    /// A row's cells beside each other, wrapped to the widths.
    fn lines(&self, cells: &[String], places: &[CellPlace], lines: &mut Vec<String>) {
        let columns = cells.iter().zip(places).zip(&self.titles);
        let wrapped: Vec<(Vec<String>, usize, Align)> = columns
            .filter_map(|((cell, place), (_, align))| match place {
                CellPlace::Beside(width) => Some((wrap(cell, *width), *width, *align)),
                CellPlace::Below => None,
            })
            .collect();
        let height = wrapped.iter().map(|(cell, ..)| cell.len()).max().unwrap_or(0);
        for at in 0..height {
            let parts = wrapped
                .iter()
                .map(|(cell, width, align)| padded(cell.get(at).map_or("", String::as_str), *width, *align));
            lines.push(parts.collect::<Vec<_>>().join(GAP).trim_end().to_owned());
        }
    }

    /// The cells that do not fit beside the others, each behind its title.
    fn lines_below(&self, cells: &[String], places: &[CellPlace], width: usize, lines: &mut Vec<String>) {
        let below = cells
            .iter()
            .zip(places)
            .zip(&self.titles)
            .filter(|((cell, place), _)| **place == CellPlace::Below && !cell.is_empty());
        for ((cell, _), (title, _)) in below {
            let text = if title.is_empty() { cell.clone() } else { format!("{title}: {cell}") };
            let wrapped = wrap(&text, width.saturating_sub(INDENT.len()).max(PROSE));
            lines.extend(wrapped.into_iter().map(|line| format!("{INDENT}{line}")));
        }
    }
}

/// Prose in lines of at most `width` characters, each line of it with its own indentation.
pub fn prose(text: &str, width: usize) -> String {
    let paragraph = |line: &str| {
        let words = line.trim_start();
        let indent = length(line) - length(words);
        let lines = wrap(words, width.saturating_sub(indent).max(PROSE)).into_iter();
        lines.map(|line| format!("{}{line}", " ".repeat(indent))).collect::<Vec<_>>().join("\n")
    };
    text.split('\n').map(paragraph).collect::<Vec<_>>().join("\n")
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn longest_piece(text: &str) -> usize {
    pieces(text).map(|piece| length(piece.trim_end())).max().unwrap_or(0)
}

/// The width of columns beside each other.
fn total(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = GAP.len() * widths.len().saturating_sub(1);
    widths.sum::<usize>() + gaps
}

/// Format's own padding ends at 65535, and a tensor's name need not.
fn padded(cell: &str, width: usize, align: Align) -> String {
    let space = " ".repeat(width.saturating_sub(length(cell)));
    match align {
        Align::Left => format!("{cell}{space}"),
        Align::Right => format!("{space}{cell}"),
    }
}

/// Unbreakable units: words, and the parts of schemes such as `int8+int8:token`.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive([' ', '+'])
}

/// Lines of at most `width` characters, broken at spaces and within schemes.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if length(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces(text) {
        match lines.last_mut() {
            Some(line) if length(line) + length(piece.trim_end()) <= width => line.push_str(piece),
            _ => lines.push(piece.to_owned()),
        }
    }
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(table: &Table, width: usize) -> String {
        table.render(width, &str::to_owned)
    }

    #[test]
    fn cells_may_be_of_any_length() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.push(["x".repeat(70_000), "1".to_owned()]);
        assert!(plain(&table, 80).len() > 70_000 && plain(&table, 100_000).len() > 140_000);
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        table.push(["a", "1 B", ""]);
        table.push(["größe\u{7}", "12 MB", "x"]);
        assert_eq!(plain(&table, 80), "name         size\na             1 B\ngröße\\u{7}  12 MB  x");
    }

    #[test]
    fn titles_of_numbers_are_wrapped_and_numbers_go_below_last() {
        let titles = ["perplexity", "of the reference", "increase"].map(|title| (title, Align::Right));
        let mut table = Table::new(&titles);
        table.push(["12.3456", "11.2233", "+10.0 %"]);
        assert_eq!(plain(&table, 80).lines().count(), 2);
        let narrow = plain(&table, 34);
        assert_eq!(
            narrow,
            "perplexity        of the  increase\n               reference\n   12.3456       11.2233   +10.0 %"
        );
        let folded = plain(&table, 24);
        assert_eq!(folded.lines().last(), Some("    increase: +10.0 %"), "{folded}");
        assert!(folded.lines().all(|line| line.chars().count() <= 24), "{folded}");
    }

    #[test]
    fn schemes_wrap_between_their_parts() {
        assert_eq!(wrap("e4m3:channel+e4m3:token!dynamic", 24), ["e4m3:channel+", "e4m3:token!dynamic"]);
        assert_eq!(wrap("a + b", 3), ["a +", "b"]);
        assert_eq!(wrap("long_name", 3), ["long_name"]);
    }

    #[test]
    fn columns_go_below_a_name_that_is_too_long() {
        let mut table = Table::new(&[("tensors", Align::Left), ("n", Align::Right), ("becomes", Align::Left)]);
        table.push(["model.layers.{0..3}.post_attention_layernorm.weight", "4", "kept (norm)"]);
        table.push(["lm_head.weight", "1", "int4:g32"]);
        let narrow = plain(&table, 40);
        let is_name = |line: &&str| line.starts_with("model.layers");
        assert!(narrow.lines().filter(|line| !is_name(line)).all(|line| line.chars().count() <= 40), "{narrow}");
        assert!(narrow.contains("lm_head.weight\n    n: 1\n    becomes: int4:g32"), "{narrow}");
    }

    #[test]
    fn paragraphs_are_wrapped_with_their_indentation() {
        let text = "39 tensors, family llama, not quantized: 0 errors\n  of 2 kinds";
        assert_eq!(prose(text, 200), text);
        assert_eq!(prose(text, 26), "39 tensors, family llama,\nnot quantized: 0 errors\n  of 2 kinds");
    }

    #[test]
    fn prose_is_wrapped_and_names_stay_whole() {
        let mut table = Table::new(&["where", "what", "remedy"].map(|title| (title, Align::Left)));
        let (place, what) = ("model.layers.0.mlp.down_proj", "groups of 128 input channels straddle shards of 48");
        table.push([place, what, "take fewer devices, or quantize with smaller groups"]);
        let wide = plain(&table, usize::MAX);
        assert_eq!(wide.lines().count(), 2);
        let wrapped = plain(&table, 100);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 100) && wrapped.lines().count() == 4, "{wrapped}");
        let folded = plain(&table, 60);
        assert!(folded.lines().all(|line| line.chars().count() <= 60), "{folded}");
        assert!(folded.contains("\n    remedy: take fewer devices"), "{folded}");
        let words =
            |text: &str| text.split_whitespace().filter(|word| !["remedy", "remedy:", "what:"].contains(word)).count();
        assert!(folded.contains(place) && words(&folded) >= words(&wide) - 1, "{folded}");
    }
}
