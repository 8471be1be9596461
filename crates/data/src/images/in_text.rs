//! Images in texts: what stands for them in what a chat template renders, and the numbers of their rows among tokens.
//!
//! Rows of images are tokens too: their numbers follow those of the vocabulary, row after row and image after image. What a model makes of
//! the pixels of an image is not decided here.

use super::error::ImageDataError;
use super::processor::{ImageProcessor, PatchSizes};
use super::{Images, Shapes, Source};
use crate::tokenizer::ModelTokenizer;
use kvant_container::{Diagnostic, ErrorKind, MappedFile, model_directory};
use kvant_model::vision::{ImageReading, Placeholder, ProcessorRows, TokenKey};
use kvant_samples::{SampleError, picture_size};
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// How a model reads images in a text.
#[derive(Clone, Debug)]
pub struct TextImageFormat {
    /// The first token of what stands for an image.
    placeholder: u32,
    /// The token that stands for a row.
    token: u32,
    /// The token behind the rows, where an image is framed.
    end: Option<u32>,
    images: ImagesRead,
    processor: ImageProcessor,
}

/// The images that a tower reads.
#[derive(Clone, Copy, Debug)]
enum ImagesRead {
    /// Those of one size.
    Equal {
        /// Rows of an image.
        rows: usize,
        /// Channels, height and width.
        shape: [usize; 3],
    },
    /// Those of any size, of which a square of patches makes a row.
    AnySize(PatchSizes),
}

/// An image of a text.
#[derive(Clone, Debug)]
struct NamedImage {
    file: PathBuf,
    size: ImageSize,
    /// Rows of all images before it.
    start: usize,
}

/// What the tower reads and makes of an image.
#[derive(Clone, Copy, Debug, Default)]
struct ImageSize {
    /// Channels, height and width.
    shape: [usize; 3],
    /// Rows along the height and width, of images of any size.
    grid: Option<[usize; 2]>,
    /// All rows.
    rows: usize,
}

/// The texts of a format's tokens.
#[derive(Clone, Debug)]
pub struct ImageMarks {
    /// What stands for an image in what the chat template renders.
    pub placeholder: String,
    before: String,
    row: String,
    after: String,
}

impl TextImageFormat {
    /// The format of the model in a directory, whose tower makes `rows` of images of this shape.
    ///
    /// # Errors
    /// Preprocessing that is missing, not computed, or for images of another shape; a processor that makes another number of rows.
    pub fn open(
        model: &Path,
        reading: &ImageReading,
        config: &Value,
        (shape, rows): ([usize; 3], usize),
    ) -> Result<TextImageFormat, ImageDataError> {
        let processor = ImageProcessor::of_model(model)?;
        processor.check(shape)?;
        let file = model_directory(model).join("processor_config.json");
        if let Some(found) = rows_of_processor(&file, reading.processor_rows, shape)?.filter(|found| *found != rows) {
            return Err(ImageDataError::ProcessorRows { file, found, expected: rows });
        }
        TextImageFormat::new(model, (reading, config), ImagesRead::Equal { rows, shape }, processor)
    }

    /// The same of a model whose tower reads images of any size, in patches of these sizes.
    ///
    /// # Errors
    /// Preprocessing that is missing, not computed, or makes other patches.
    pub fn of_any_size(
        model: &Path,
        reading: &ImageReading,
        config: &Value,
        sizes: PatchSizes,
    ) -> Result<TextImageFormat, ImageDataError> {
        let processor = ImageProcessor::of_model(model)?;
        match processor.patches {
            Some(found) if found == sizes => {
                TextImageFormat::new(model, (reading, config), ImagesRead::AnySize(sizes), processor)
            }
            found => {
                let [patch, square, frames] = [sizes.patch, sizes.square, sizes.frames];
                let expected = format!("patches of {patch}, squares of {square} and {frames} frames");
                let problem = match found {
                    None => format!("makes no patches, and the tower of the model reads {expected}"),
                    Some(PatchSizes { patch, square, frames }) => format!(
                        "makes patches of {patch}, squares of {square} and {frames} frames, and the tower of the model reads {expected}"
                    ),
                };
                Err(ImageDataError::Processor { file: processor.file, problem })
            }
        }
    }

    fn new(
        model: &Path,
        (reading, config): (&ImageReading, &Value),
        images: ImagesRead,
        processor: ImageProcessor,
    ) -> Result<TextImageFormat, ImageDataError> {
        let number = |key: TokenKey| {
            let problem = || format!("`{}` of config.json is no token", key.keys[0]);
            let file = model_directory(model).join("config.json");
            key.of(config).ok_or_else(|| ImageDataError::Processor { file, problem: problem() })
        };
        let (placeholder, token, end) = match reading.placeholder {
            Placeholder::Repeated { token } => (number(token)?, number(token)?, None),
            Placeholder::Framed { begin, token, end } => (number(begin)?, number(token)?, Some(number(end)?)),
        };
        Ok(TextImageFormat { placeholder, token, end, images, processor })
    }

    /// What the tower reads and makes of the picture in a file.
    fn size_of(&self, file: &Path) -> Result<ImageSize, ImageDataError> {
        match self.images {
            ImagesRead::Equal { rows, shape } => Ok(ImageSize { shape, grid: None, rows }),
            ImagesRead::AnySize(sizes) => {
                let [height, width] = self.processor.size_of(file, picture_size(file)?)?;
                let grid = [height, width].map(|side| side / sizes.factor().max(1));
                Ok(ImageSize { shape: [3, height, width], grid: Some(grid), rows: grid[0] * grid[1] })
            }
        }
    }

    /// The texts of its tokens.
    ///
    /// # Errors
    /// Tokens that the tokenizer does not have.
    pub fn marks(&self, tokenizer: &ModelTokenizer) -> Result<ImageMarks, ImageDataError> {
        let text = |token: u32| {
            let missing = || ImageDataError::NoToken { file: tokenizer.file().to_path_buf(), token };
            tokenizer.text_of(token).ok_or_else(missing)
        };
        let (placeholder, row) = (text(self.placeholder)?, text(self.token)?);
        let (before, after) = match self.end {
            None => (String::new(), String::new()),
            Some(end) => (format!("\n\n{placeholder}"), format!("{}\n\n", text(end)?)),
        };
        Ok(ImageMarks { placeholder, before, row, after })
    }
}

/// Rows of an image by the keys of the model's processor, where it states them.
fn rows_of_processor(
    file: &Path,
    rule: ProcessorRows,
    [_, height, width]: [usize; 3],
) -> Result<Option<usize>, ImageDataError> {
    if !file.is_file() {
        return Ok(None);
    }
    let invalid = |problem: String| ImageDataError::Processor { file: file.to_path_buf(), problem };
    let text = fs::read_to_string(file).map_err(|cause| invalid(format!("cannot be read: {cause}")))?;
    let stated: Value = serde_json::from_str(&text).map_err(|cause| invalid(format!("is no JSON: {cause}")))?;
    let number = |key: &str| stated.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    Ok(match rule {
        ProcessorRows::Length { key } => number(key),
        ProcessorRows::Patches { patch, further, strategy } => number(patch).filter(|patch| *patch > 0).map(|patch| {
            let all = (height / patch) * (width / patch) + number(further).unwrap_or(0);
            let is_cut = stated.get(strategy).and_then(Value::as_str) == Some("default");
            all.saturating_sub(usize::from(is_cut))
        }),
        ProcessorRows::Squares => None,
    })
}

/// Why images in texts are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagesUnread {
    /// The reason, as a clause.
    pub reason: String,
    /// What can be done.
    pub hint: Option<String>,
    /// The kind of the reason.
    pub kind: ErrorKind,
}

impl ImagesUnread {
    /// The model reads text alone.
    pub fn of_text() -> ImagesUnread {
        ImagesUnread { reason: "the model reads text alone".to_owned(), hint: None, kind: ErrorKind::Unsupported }
    }

    /// The reason that an error is.
    pub fn of(error: &(impl Diagnostic + std::fmt::Display)) -> ImagesUnread {
        ImagesUnread { reason: error.to_string(), hint: error.hint(), kind: error.kind() }
    }
}

/// The images of some texts, each with a number.
#[derive(Clone, Debug)]
pub struct TextImages {
    format: Result<Arc<TextImageFormat>, ImagesUnread>,
    /// Tokens of text.
    vocabulary: usize,
    images: Vec<NamedImage>,
    numbers: HashMap<PathBuf, usize>,
}

/// Which images texts have, for the metadata of an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextImageProvenance {
    /// Their files.
    pub files: usize,
    /// The bytes of all files.
    pub bytes: u64,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of the bytes of all files.
    pub xxh3_128: String,
    /// Rows of an image, where all have as many.
    pub rows: Option<usize>,
    /// The steps from a picture to pixels.
    pub preprocessing: ImageProcessor,
}

impl TextImages {
    /// No images yet, for a model with a vocabulary of so many tokens that reads them in this format.
    pub fn new(format: TextImageFormat, vocabulary: usize) -> TextImages {
        TextImages { format: Ok(Arc::new(format)), vocabulary, images: Vec::new(), numbers: HashMap::new() }
    }

    /// No images, for a reason.
    pub fn unread(reason: ImagesUnread) -> TextImages {
        TextImages { format: Err(reason), vocabulary: usize::MAX, images: Vec::new(), numbers: HashMap::new() }
    }

    /// The format.
    ///
    /// # Errors
    /// Why images are not read.
    pub fn format(&self) -> Result<&TextImageFormat, &ImagesUnread> {
        self.format.as_ref().map(Arc::as_ref)
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Rows of an image.
    pub fn rows_of(&self, image: usize) -> usize {
        self.images.get(image).map_or(0, |image| image.size.rows)
    }

    /// Rows along the height and width of an image of any size; `None` for those of one size.
    pub fn grid(&self, image: usize) -> Option<[usize; 2]> {
        self.images.get(image)?.size.grid
    }

    /// Adds the image in a file, unless it is there, and returns its number.
    ///
    /// # Errors
    /// No such file, and more images than there are numbers for; where images have any size, also files that are no pictures.
    pub fn add(&mut self, file: &Path) -> Result<usize, ImageDataError> {
        if let Some(number) = self.numbers.get(file) {
            return Ok(*number);
        }
        fs::metadata(file).map_err(|cause| SampleError::io(file, cause))?;
        let size = self.format.as_ref().map_or_else(|_| Ok(ImageSize::default()), |format| format.size_of(file))?;
        let (number, start) = (self.images.len(), self.images.last().map_or(0, |last| last.start + last.size.rows));
        let tokens = start.checked_add(size.rows).and_then(|rows| rows.checked_add(self.vocabulary));
        if tokens.is_none_or(|tokens| u32::try_from(tokens).is_err()) && self.format.is_ok() {
            return Err(ImageDataError::TooManyInText { images: number });
        }
        self.images.push(NamedImage { file: file.to_path_buf(), size, start });
        self.numbers.insert(file.to_path_buf(), number);
        Ok(number)
    }

    /// The tokens of an image.
    pub fn tokens(&self, image: usize) -> Range<u32> {
        let Some(NamedImage { start, size, .. }) = self.images.get(image) else { return 0..0 };
        // `add` has found that they fit.
        let first = (self.vocabulary + start) as u32;
        first..first + size.rows as u32
    }

    /// The image of which a token is a row.
    fn image_of(&self, token: u32) -> Option<usize> {
        let row = (token as usize).checked_sub(self.vocabulary)?;
        self.images.partition_point(|image| image.start <= row).checked_sub(1)
    }

    /// Returns whether a token of the tokenizer stands for a row of an image.
    pub fn is_placeholder(&self, token: u32) -> bool {
        self.format().is_ok_and(|format| format.token == token)
    }

    /// Returns whether a token is a row of an image.
    pub fn has(&self, token: u32) -> bool {
        token as usize >= self.vocabulary
    }

    /// The images in a sequence, with the places of their rows. Rows that do not follow those before them in their image are none.
    pub fn places(&self, sequence: &[u32]) -> Vec<(usize, Range<usize>)> {
        let (mut places, mut at) = (Vec::new(), 0);
        while at < sequence.len() {
            let whole = self.image_of(sequence[at]).filter(|image| {
                let found = sequence.get(at..at + self.rows_of(*image));
                found.is_some_and(|found| !found.is_empty() && found.iter().copied().eq(self.tokens(*image)))
            });
            match whole {
                Some(image) => {
                    let end = at + self.rows_of(image);
                    places.push((image, at..end));
                    at = end;
                }
                None => at += 1,
            }
        }
        places
    }

    /// A rendered text in which what stands for each of these images is as long as its rows; `None` where it does not name as many.
    pub fn expanded(&self, marks: &ImageMarks, text: &str, images: &[usize]) -> Option<String> {
        let mut parts = text.split(&marks.placeholder);
        let mut out = parts.next()?.to_owned();
        let mut images = images.iter();
        for part in parts {
            let rows = self.rows_of(*images.next()?);
            out += &marks.before;
            (0..rows).for_each(|_| out += &marks.row);
            out += &marks.after;
            out += part;
        }
        images.next().is_none().then_some(out)
    }

    /// Tokens of an expanded text with the rows of these images in their places; `None` where there are not as many places.
    pub fn numbered(&self, tokens: &[u32], images: &[usize]) -> Option<Vec<u32>> {
        let Ok(format) = self.format() else { return None };
        let mut rows = images.iter().flat_map(|image| self.tokens(*image));
        let of = |token: &u32| if *token == format.token { rows.next() } else { Some(*token) };
        let numbered: Vec<u32> = tokens.iter().map(of).collect::<Option<_>>()?;
        rows.next().is_none().then_some(numbered)
    }

    /// A sequence of at most `longest` tokens of text, and the images between them, whole.
    pub fn shortened(&self, tokens: &mut Vec<u32>, longest: usize) {
        let mut text = 0;
        let end = tokens.iter().position(|token| {
            text += usize::from(!self.has(*token));
            text > longest
        });
        tokens.truncate(end.unwrap_or(tokens.len()));
    }

    /// Some of the images, to be prepared one at a time.
    ///
    /// # Errors
    /// Why images are not read.
    pub fn pictures(&self, images: &[usize]) -> Result<Images, ImagesUnread> {
        let format = self.format().map_err(ImagesUnread::clone)?;
        let files = images.iter().map(|image| self.images[*image].file.clone()).collect();
        let shapes = Shapes::Each(images.iter().map(|image| self.images[*image].size.shape).collect());
        let source = Source::Pictures { files, processor: format.processor.clone() };
        Ok(Images { source, order: (0..images.len()).collect(), shapes })
    }

    /// Where those images come from that some sequences have; `None` where these have none.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn provenance<'s>(
        &self,
        sequences: impl Iterator<Item = &'s [u32]>,
    ) -> Result<Option<TextImageProvenance>, ImageDataError> {
        let used: std::collections::BTreeSet<usize> =
            sequences.flat_map(|sequence| self.places(sequence)).map(|(image, _)| image).collect();
        let Some(format) = self.format().ok().filter(|_| !used.is_empty()) else { return Ok(None) };
        let (mut hash, mut bytes) = (Xxh3::new(), 0);
        for image in &used {
            let file = &self.images[*image].file;
            let contents = MappedFile::open(file).map_err(|cause| SampleError::io(file, cause))?;
            hash.update(&contents);
            bytes += contents.len() as u64;
        }
        Ok(Some(TextImageProvenance {
            files: used.len(),
            bytes,
            xxh3_128: format!("{:032x}", hash.digest128()),
            rows: match format.images {
                ImagesRead::Equal { rows, .. } => Some(rows),
                ImagesRead::AnySize(_) => None,
            },
            preprocessing: format.processor.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(rows: usize) -> TextImages {
        let processor = ImageProcessor {
            file: PathBuf::new(),
            resize: None,
            crop: None,
            scale: 1.0,
            mean: [0.0; 3],
            std: [1.0; 3],
            rescales_first: false,
            patches: None,
            is_of_torch: false,
        };
        let read = ImagesRead::Equal { rows, shape: [3, 2, 2] };
        let mut images =
            TextImages::new(TextImageFormat { placeholder: 3, token: 4, end: Some(5), images: read, processor }, 10);
        for name in ["Cargo.toml", "src"] {
            images.add(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
        }
        images
    }

    #[test]
    fn rows_of_images_have_the_numbers_behind_the_vocabulary() {
        let images = images(3);
        assert_eq!((images.tokens(0), images.tokens(1)), (10..13, 13..16));
        let numbered = images.numbered(&[1, 4, 4, 4, 2, 4, 4, 4], &[1, 0]).unwrap();
        assert_eq!(numbered, [1, 13, 14, 15, 2, 10, 11, 12]);
        assert_eq!(images.places(&numbered), [(1, 1..4), (0, 5..8)]);
        assert_eq!(images.places(&[10, 11, 12, 10, 11, 12]), [(0, 0..3), (0, 3..6)], "the same image twice");
        assert_eq!(images.places(&[11, 12, 10, 11]), [], "parts of images are none");
        assert_eq!(images.numbered(&[1, 4, 4, 4], &[1, 0]), None);
        assert_eq!(images.numbered(&[1, 4, 4, 4, 4], &[1]), None);
    }

    #[test]
    fn placeholders_become_as_long_as_the_rows() {
        let marks = ImageMarks {
            placeholder: "<b>".to_owned(),
            before: "\n\n<b>".to_owned(),
            row: "<i>".to_owned(),
            after: "<e>\n\n".to_owned(),
        };
        let images = images(2);
        assert_eq!(images.expanded(&marks, "a<b>c", &[1]).unwrap(), "a\n\n<b><i><i><e>\n\nc");
        assert_eq!(images.expanded(&marks, "a<b>c", &[0, 1]), None);
        assert_eq!(images.expanded(&marks, "ac", &[]).unwrap(), "ac");
    }

    #[test]
    fn text_is_cut_and_images_are_not() {
        let mut tokens = vec![1, 10, 11, 12, 2, 3, 13, 14, 15];
        images(3).shortened(&mut tokens, 2);
        assert_eq!(tokens, [1, 10, 11, 12, 2]);
        let mut tokens = vec![1, 2, 10, 11, 12];
        images(3).shortened(&mut tokens, 2);
        assert_eq!(tokens, [1, 2, 10, 11, 12]);
    }
}
