//! Converts matrices of 4-bit codes, eight to a 32-bit word, between word layouts: words are moved, and blocks of
//! eight by eight codes transposed, without expanding codes to bytes. Not packing codes, which is in [`super::words`].

use super::words::{NibbleOrder, Word};
use crate::simd::{Isa, Loop, dispatch};

/// Along what the eight codes of a word run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordAxis {
    /// Eight rows of one column.
    Rows,
    /// Eight columns of one row.
    Columns,
}

/// The packing of a matrix of codes into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordLayout {
    /// Along what the codes of a word run.
    pub axis: WordAxis,
    /// Which of eight codes is in which nibble.
    pub order: NibbleOrder,
    /// Whether words that follow each other are of one column (of words), not of one row.
    pub column_major: bool,
}

impl WordLayout {
    /// The rows and columns of words that `rows x columns` codes are; `None` where they fill no whole words.
    pub fn words(self, rows: usize, columns: usize) -> Option<(usize, usize)> {
        match self.axis {
            WordAxis::Rows => rows.is_multiple_of(8).then_some((rows / 8, columns)),
            WordAxis::Columns => columns.is_multiple_of(8).then_some((rows, columns / 8)),
        }
    }

    /// Whether words of one line of codes (a row where words run along the columns, a column where they run along the rows)
    /// follow each other.
    fn lines_are_runs(self) -> bool {
        (self.axis == WordAxis::Rows) == self.column_major
    }
}

/// Words of a matrix, or a part of it that begins with the first: from one row (or column) of words to the next it is `stride`.
#[derive(Clone, Copy, Debug)]
pub struct WordMatrix<'a> {
    /// The words, from the first of the part on.
    pub words: &'a [Word],
    /// How they lie.
    pub layout: WordLayout,
    /// Words between the beginnings of two rows, or columns where it is column-major.
    pub stride: usize,
}

/// Lines of codes in a block.
const LINES: usize = 128;
/// Words of a line in a block: a line of the cache.
const WIDTH: usize = LINES / 8;

/// Words of some lines of codes, which may be taken for lines that cross them.
type Block = [[u32; WIDTH]; LINES];

/// Rearranges `rows x columns` codes: `out` gets their words in the layout `target`, of which it holds all and nothing else.
/// `flipped` makes offset-binary codes of two's complement, or the reverse.
///
/// # Panics
///
/// If rows or columns are no multiple of 8 where the words of either layout run along them, or `out` is of another size.
pub fn rearrange_words(
    isa: Isa,
    from: WordMatrix<'_>,
    target: WordLayout,
    (rows, columns): (usize, usize),
    flipped: bool,
    out: &mut [Word],
) {
    let words = target.words(rows, columns).filter(|_| from.layout.words(rows, columns).is_some());
    assert_eq!(words.map(|(rows, columns)| rows * columns), Some(out.len()), "words of {rows} x {columns} codes");
    let out_stride = words.map_or(0, |(rows, columns)| if target.column_major { rows } else { columns });
    let flip = if flipped { 0x8888_8888 } else { 0 };
    let mut blocks = [[[0; WIDTH]; LINES]; 2];
    for top in (0..rows).step_by(LINES) {
        for left in (0..columns).step_by(LINES) {
            let size = (LINES.min(rows - top), LINES.min(columns - left));
            let [block, turned] = &mut blocks;
            load(&from, (top, left), size, block);
            dispatch(isa, Turn { orders: (from.layout, target), flip, block, turned });
            store(turned, target, out_stride, (top, left), size, out);
        }
    }
}

/// Lines and words of a line in a block of codes.
fn lines_and_words(axis: WordAxis, (rows, columns): (usize, usize)) -> (usize, usize) {
    match axis {
        WordAxis::Columns => (rows, columns / 8),
        WordAxis::Rows => (columns, rows / 8),
    }
}

/// The position of the first word of a block.
fn start(layout: WordLayout, stride: usize, (top, left): (usize, usize)) -> usize {
    let (line, word) = lines_and_words(layout.axis, (top, left));
    if layout.lines_are_runs() { line * stride + word } else { word * stride + line }
}

fn load(from: &WordMatrix<'_>, at: (usize, usize), size: (usize, usize), block: &mut Block) {
    let (lines, width) = lines_and_words(from.layout.axis, size);
    let words = &from.words[start(from.layout, from.stride, at)..];
    if from.layout.lines_are_runs() {
        for (line, words) in block.iter_mut().zip(words.chunks(from.stride.max(1))).take(lines) {
            match words.first_chunk::<WIDTH>().filter(|_| width == WIDTH) {
                Some(words) => *line = words.map(u32::from_le_bytes),
                None => line.iter_mut().zip(&words[..width]).for_each(|(to, word)| *to = u32::from_le_bytes(*word)),
            }
        }
        return;
    }
    for (word, words) in words.chunks(from.stride.max(1)).enumerate().take(width) {
        block.iter_mut().zip(&words[..lines]).for_each(|(line, from)| line[word] = u32::from_le_bytes(*from));
    }
}

fn store(block: &Block, layout: WordLayout, stride: usize, at: (usize, usize), size: (usize, usize), out: &mut [Word]) {
    let (lines, width) = lines_and_words(layout.axis, size);
    let out = &mut out[start(layout, stride, at)..];
    if layout.lines_are_runs() {
        for (line, out) in block.iter().zip(out.chunks_mut(stride.max(1))).take(lines) {
            match out.first_chunk_mut::<WIDTH>().filter(|_| width == WIDTH) {
                Some(out) => *out = line.map(u32::to_le_bytes),
                None => out.iter_mut().zip(&line[..width]).for_each(|(to, word)| *to = word.to_le_bytes()),
            }
        }
        return;
    }
    for (word, out) in out.chunks_mut(stride.max(1)).enumerate().take(width) {
        out.iter_mut().zip(&block[..lines]).for_each(|(to, line)| *to = line[word].to_le_bytes());
    }
}

/// Makes of a block of lines one of the target's lines, in its order.
struct Turn<'a> {
    orders: (WordLayout, WordLayout),
    flip: u32,
    block: &'a Block,
    turned: &'a mut Block,
}

impl Loop for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (from, target) = self.orders;
        if from.axis == target.axis {
            return reorder((from.order, target.order), self.flip, self.block, self.turned);
        }
        for (tile, lines) in self.block.as_chunks::<8>().0.iter().enumerate() {
            let mut words = [[0; WIDTH]; 8];
            for (nibble, words) in words.iter_mut().enumerate() {
                *words = lines[target.order.code(nibble)].map(|word| word ^ self.flip);
            }
            turn_nibbles(&mut words);
            for (nibble, words) in words.iter().enumerate() {
                let line = from.order.code(nibble);
                for (group, word) in words.iter().enumerate() {
                    self.turned[group * 8 + line][tile] = *word;
                }
            }
        }
    }
}

/// Turns blocks of eight by eight nibbles, side by side: nibble `q` of word `p` becomes nibble `p` of word `q`. Halves, then
/// quarters, then eighths of the words change places.
#[inline(always)]
fn turn_nibbles(words: &mut [[u32; WIDTH]; 8]) {
    for (distance, low) in [(4, 0x0000_FFFF_u32), (2, 0x00FF_00FF), (1, 0x0F0F_0F0F)] {
        let bits = 4 * distance as u32;
        for p in (0..8).filter(|p| p & distance == 0) {
            let (upper, lower) = words.split_at_mut(p + distance);
            for (upper, lower) in upper[p].iter_mut().zip(&mut lower[0]) {
                let (a, b) = (*upper, *lower);
                *upper = (a & low) | (b & low) << bits;
                *lower = (a >> bits & low) | (b & !low);
            }
        }
    }
}

#[inline(always)]
fn reorder((from, target): (NibbleOrder, NibbleOrder), flip: u32, block: &Block, out: &mut Block) {
    for (out, line) in out.iter_mut().zip(block) {
        for (out, word) in out.iter_mut().zip(line) {
            *out = word ^ flip;
        }
        if from != target {
            for word in out.iter_mut() {
                let code = |code: usize| (*word >> from.shift(code) & 0xF) << target.shift(code);
                *word = (0..8).map(code).fold(0, |word, code| word | code);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: [WordAxis; 2] = [WordAxis::Rows, WordAxis::Columns];
    const ORDERS: [NibbleOrder; 2] = [NibbleOrder::Natural, NibbleOrder::Awq];

    fn layouts() -> Vec<WordLayout> {
        let of = |axis| {
            ORDERS.into_iter().flat_map(move |order| [false, true].map(|m| WordLayout { axis, order, column_major: m }))
        };
        AXES.into_iter().flat_map(of).collect()
    }

    /// The position of a code: word and shift. This is the definition.
    fn place(layout: WordLayout, stride: usize, row: usize, column: usize) -> (usize, u32) {
        let (row, column, code) = match layout.axis {
            WordAxis::Rows => (row / 8, column, row % 8),
            WordAxis::Columns => (row, column / 8, column % 8),
        };
        let word = if layout.column_major { column * stride + row } else { row * stride + column };
        (word, layout.order.shift(code))
    }

    fn code(words: &[Word], (word, shift): (usize, u32)) -> u32 {
        u32::from_le_bytes(words[word]) >> shift & 0xF
    }

    fn check(isa: Isa, from: WordLayout, target: WordLayout, (rows, columns): (usize, usize), flipped: bool) {
        let (high, wide) = from.words(rows, columns).unwrap();
        let (runs, length) = if from.column_major { (wide, high) } else { (high, wide) };
        let stride = length + 3;
        let source: Vec<Word> =
            (0..runs * stride).map(|i| (i as u32).wrapping_mul(2_654_435_761).rotate_left(7).to_le_bytes()).collect();
        let (high, wide) = target.words(rows, columns).unwrap();
        let mut out = vec![Word::default(); high * wide];
        let matrix = WordMatrix { words: &source, layout: from, stride };
        rearrange_words(isa, matrix, target, (rows, columns), flipped, &mut out);
        let out_stride = if target.column_major { high } else { wide };
        for row in 0..rows {
            for column in 0..columns {
                let expected = code(&source, place(from, stride, row, column)) ^ if flipped { 8 } else { 0 };
                assert_eq!(
                    code(&out, place(target, out_stride, row, column)),
                    expected,
                    "{from:?} {target:?} {row} {column}"
                );
            }
        }
    }

    #[test]
    fn codes_keep_their_positions_between_layouts() {
        for isa in Isa::available() {
            for from in layouts() {
                for target in layouts() {
                    for (size, flipped) in [((136, 264), false), ((8, 8), true), ((256, 40), true), ((0, 16), false)] {
                        check(isa, from, target, size, flipped);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_not_crossed_by_words_may_have_any_count() {
        for column_major in [false, true] {
            let layout =
                |column_major| WordLayout { axis: WordAxis::Columns, order: NibbleOrder::Natural, column_major };
            check(Isa::best(), layout(column_major), layout(!column_major), (131, 24), false);
        }
        let down = WordLayout { axis: WordAxis::Rows, order: NibbleOrder::Natural, column_major: false };
        assert_eq!((down.words(12, 3), down.words(16, 3)), (None, Some((2, 3))));
    }
}
