//! Images for checkpoints of models of images: how they are opened, and which settings of a job apply to samples that are no text.

use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::{Data, Limits, Precision};
use crate::settings::first_given;
use kvant_container::{Checkpoint, Remedy};
use kvant_data::images::{ImageOptions, ImageProcessor, Images, TextImages};
use kvant_forward::forward::Decoder;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Channels, height and width of the images that the model of a checkpoint reads; `None` for models of text, and for those that do not run.
pub fn shape(checkpoint: &Checkpoint) -> Option<[usize; 3]> {
    Decoder::open_any(checkpoint).ok()?.image_shape()
}

/// Samples that are no text, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// What they are.
    pub name: &'static str,
    /// What to give.
    pub files: &'static str,
}

/// Images.
pub const IMAGES: Media = Media { name: "images", files: "a folder of images, or arrays of `pixel_values`" };

/// Sounds.
pub const SOUNDS: Media =
    Media { name: "sounds", files: "a folder of WAV files, or arrays of `input_features` or `input_values`" };

/// The path of calibration data, for a model that reads images or sounds.
///
/// # Errors
/// No data, several paths, and settings that only text has.
pub fn calibration_path(data: &Data, media: Media) -> Result<&Path, Error> {
    let Media { name, files } = media;
    let give = || Remedy::setting("calib", format!("give {files}, with ‹calib›"));
    refuse_text_settings(
        media,
        &[
            (data.seq_len.is_some(), "‹seq-len›"),
            (data.packing.is_some(), "‹packing›"),
            (data.column.is_some(), "‹column›"),
            (!data.shares.is_empty(), "a share of calibration data"),
        ],
    )?;
    match &data.files[..] {
        [path] if !Data::is_self(path) => Ok(path),
        [] => Err(Error::new(ErrorKind::Usage, format!("no {name} are given")).with_remedies(vec![give()])),
        [_] => {
            let message = format!("the model reads {name}, and writes none itself");
            Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![give()]))
        }
        _ => {
            let message = format!("a model of {name} is calibrated on one file or directory");
            let error = Error::new(ErrorKind::Usage, message);
            Err(error.with_hint(Some("put the files into one directory and give that".to_owned())))
        }
    }
}

/// Refuses the first setting that is given and only text has.
///
/// # Errors
/// A setting that is given.
pub fn refuse_text_settings(media: Media, given: &[(bool, &'static str)]) -> Result<(), Error> {
    first_given(given).map_or(Ok(()), |setting| {
        let message = format!("{setting} applies only to text, and the model reads {}", media.name);
        Err(Error::new(ErrorKind::Usage, message).with_hint(Some("leave it out".to_owned())))
    })
}

/// Gives a decoder the images of some sequences, as a part of a stage of the work.
///
/// # Errors
/// Images that cannot be read, towers that do not run, a cancelled run.
pub fn give<'a, 's>(
    decoder: &mut Decoder<'a>,
    checkpoint: &'a Checkpoint,
    images: &Arc<TextImages>,
    sequences: impl Iterator<Item = &'s [u32]> + Send,
    how: &TowerRun<'_, '_>,
) -> Result<(), Error> {
    if images.is_empty() {
        return Ok(());
    }
    let progress = how.reporter.stage(how.stage, Unit::Samples);
    let watch = progress.watch_cancelled();
    let (ops, memory) = (how.precision.ops(), how.limits.memory.0);
    let work = || decoder.give_text_images(checkpoint, images, sequences, &ops, memory, watch);
    Ok(how.limits.pool()?.install(work)?)
}

/// How a tower for images runs.
pub struct TowerRun<'r, 'e> {
    /// The stage of the work that it is a part of.
    pub stage: Stage,
    /// The precision of activations.
    pub precision: Precision,
    /// Threads and memory.
    pub limits: &'r Limits,
    /// Receives its progress.
    pub reporter: &'r Reporter<'e>,
}

/// The images of a path, prepared as the first of these checkpoints says that states how.
///
/// # Errors
/// Data that are no images, or do not fit the model.
pub fn open(path: &Path, models: &[&Path], shape: [usize; 3], options: ImageOptions) -> Result<Arc<Images>, Error> {
    let states = |model: &&&Path| ImageProcessor::of_model(model).is_ok();
    let model = models.iter().find(states).or(models.first()).copied().map_or_else(PathBuf::new, Path::to_path_buf);
    Ok(Arc::new(Images::open(path, &model, shape, options)?))
}
