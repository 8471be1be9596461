//! The pieces of a SentencePiece model (`tokenizer.model`): text, score and kind of each. The rest of the file, which says
//! how it was trained and how text is normalised, is skipped.
//!
//! Source: `sentencepiece_model.proto`: `ModelProto.pieces = 1`, `SentencePiece { piece = 1, score = 2, type = 3 }`.

use std::path::Path;

use crate::error::Error;
use crate::mmap::MappedFile;
use crate::protobuf::{Fields, Wire, WireError};

/// The kind of a piece.
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
    /// Its kind.
    pub kind: PieceKind,
}

/// Reads the pieces of a model; a piece's position is its token.
///
/// # Errors
///
/// [`Error::Io`], [`Error::NotAFile`], [`Error::SentencePiece`] for anything but such a model.
pub fn read_pieces(path: &Path) -> Result<Vec<Piece>, Error> {
    let map = MappedFile::open(path)?;
    let damaged = |e: WireError| Error::SentencePiece { file: path.to_path_buf(), reason: e.to_string() };
    let pieces = parse(&map).map_err(damaged)?;
    match pieces.is_empty() {
        true => Err(Error::SentencePiece { file: path.to_path_buf(), reason: "it has no pieces".to_owned() }),
        false => Ok(pieces),
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Piece>, WireError> {
    let (mut fields, mut pieces) = (Fields(bytes), Vec::new());
    while let Some(field) = fields.next()? {
        if let (1, Wire::Bytes(bytes)) = field {
            pieces.push(piece(bytes)?);
        }
    }
    Ok(pieces)
}

fn piece(bytes: &[u8]) -> Result<Piece, WireError> {
    let mut fields = Fields(bytes);
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceKind::Normal };
    while let Some(field) = fields.next()? {
        match field {
            (1, Wire::Bytes(text)) => piece.text = text_of(text)?,
            (2, Wire::Fixed32(score)) => piece.score = f32::from_le_bytes(score),
            (3, Wire::Varint(number)) => piece.kind = kind(number),
            _ => {}
        }
    }
    Ok(piece)
}

fn text_of(bytes: &[u8]) -> Result<String, WireError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Utf8)
}

fn kind(number: u64) -> PieceKind {
    match number {
        2 => PieceKind::Unknown,
        3 => PieceKind::Control,
        4 => PieceKind::UserDefined,
        5 => PieceKind::Unused,
        6 => PieceKind::Byte,
        _ => PieceKind::Normal,
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
    fn pieces_are_read_and_trainer_settings_skipped() {
        let trainer = [0x12, 0x03, 1, 2, 3];
        let bytes = [encoded("<unk>", 0.0, 2), trainer.to_vec(), encoded("▁the", -3.5, 1), encoded("<0x0A>", 0.0, 6)];
        let pieces = parse(&bytes.concat()).unwrap();
        let kinds: Vec<_> = pieces.iter().map(|piece| piece.kind).collect();
        assert_eq!(kinds, [PieceKind::Unknown, PieceKind::Normal, PieceKind::Byte]);
        assert_eq!((pieces[1].text.as_str(), pieces[1].score), ("▁the", -3.5));
    }

    #[test]
    fn damaged_sentencepiece_models_are_refused() {
        let whole = encoded("piece", 1.0, 1);
        for len in 1..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "{len}");
        }
        assert!(parse(&[0x0f]).is_err());
        assert!(parse(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
