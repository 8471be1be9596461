//! The pieces of a SentencePiece model (`tokenizer.model`): text, score and kind of each. The rest of the file, which says
//! how it was trained and how text is normalised, is skipped.
//!
//! Source: `sentencepiece_model.proto`: `ModelProto.pieces = 1`, `SentencePiece { piece = 1, score = 2, type = 3 }`.

use std::path::Path;

use protobuf::CodedInputStream;

use crate::error::Error;
use crate::mmap::MappedFile;

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PieceKind {
    /// Text.
    Normal,
    /// Stands for what no piece covers.
    Unknown,
    /// Never in text: begin and end of a sequence.
    Control,
    /// Added by whoever trained the model.
    UserDefined,
    /// A place that is not used.
    Unused,
    /// One byte.
    Byte,
}

/// A piece of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Its text.
    pub text: String,
    /// Its logarithmic probability, or minus its rank.
    pub score: f32,
    /// What it is.
    pub kind: PieceKind,
}

/// Reads the pieces of a model; a piece's position is its token.
///
/// # Errors
///
/// [`Error::Io`], [`Error::NotAFile`], [`Error::SentencePiece`] for what is no such model.
pub fn read_pieces(path: &Path) -> Result<Vec<Piece>, Error> {
    let map = MappedFile::open(path)?;
    let damaged = |e: protobuf::Error| Error::SentencePiece { file: path.to_path_buf(), reason: e.to_string() };
    let pieces = parse(&map).map_err(damaged)?;
    match pieces.is_empty() {
        true => Err(Error::SentencePiece { file: path.to_path_buf(), reason: "it has no pieces".to_owned() }),
        false => Ok(pieces),
    }
}

/// The tag of a field that holds a number of bytes: its number, and wire type 2.
const fn bytes_field(number: u32) -> u32 {
    number << 3 | 2
}

fn parse(bytes: &[u8]) -> protobuf::Result<Vec<Piece>> {
    let mut input = CodedInputStream::from_bytes(bytes);
    let mut pieces = Vec::new();
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        match tag {
            tag if tag == bytes_field(1) => pieces.push(piece(&input.read_bytes()?)?),
            tag => skip(tag, &mut input)?,
        }
    }
    Ok(pieces)
}

fn piece(bytes: &[u8]) -> protobuf::Result<Piece> {
    const TEXT: u32 = bytes_field(1);
    const SCORE: u32 = 2 << 3 | 5;
    const KIND: u32 = 3 << 3;
    let mut input = CodedInputStream::from_bytes(bytes);
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceKind::Normal };
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        match tag {
            TEXT => piece.text = input.read_string()?,
            SCORE => piece.score = input.read_float()?,
            KIND => piece.kind = kind(input.read_int32()?),
            tag => skip(tag, &mut input)?,
        }
    }
    Ok(piece)
}

fn kind(number: i32) -> PieceKind {
    match number {
        2 => PieceKind::Unknown,
        3 => PieceKind::Control,
        4 => PieceKind::UserDefined,
        5 => PieceKind::Unused,
        6 => PieceKind::Byte,
        _ => PieceKind::Normal,
    }
}

/// Leaves a field out by its wire type.
fn skip(tag: u32, input: &mut CodedInputStream<'_>) -> protobuf::Result<()> {
    match tag & 7 {
        0 => input.read_raw_varint64().map(drop),
        1 => input.skip_raw_bytes(8),
        2 => {
            let len = input.read_raw_varint32()?;
            input.skip_raw_bytes(len)
        }
        5 => input.skip_raw_bytes(4),
        _ => Err(std::io::Error::from(std::io::ErrorKind::InvalidData).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece as protobuf writes it.
    fn encoded(text: &str, score: f32, kind: u8) -> Vec<u8> {
        let inner = [&[0x0a, text.len() as u8][..], text.as_bytes(), &[0x15], &score.to_le_bytes(), &[0x18, kind]];
        let inner = inner.concat();
        [&[0x0a, inner.len() as u8][..], &inner].concat()
    }

    #[test]
    fn pieces_are_read_and_the_rest_is_skipped() {
        let trainer = [0x12, 0x03, 1, 2, 3];
        let bytes = [encoded("<unk>", 0.0, 2), trainer.to_vec(), encoded("▁the", -3.5, 1), encoded("<0x0A>", 0.0, 6)];
        let pieces = parse(&bytes.concat()).unwrap();
        let kinds: Vec<_> = pieces.iter().map(|piece| piece.kind).collect();
        assert_eq!(kinds, [PieceKind::Unknown, PieceKind::Normal, PieceKind::Byte]);
        assert_eq!((pieces[1].text.as_str(), pieces[1].score), ("▁the", -3.5));
    }

    #[test]
    fn damaged_models_are_refused() {
        let whole = encoded("piece", 1.0, 1);
        for len in 1..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "{len}");
        }
        assert!(parse(&[0x0f]).is_err());
        assert!(parse(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
