//! Files of data as numpy writes them, and as nobody should.

use kvant_container::Diagnostic;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use kvant_container::onnx::DataType;

use super::*;

fn npy(descr: &str, shape: &[usize], values: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    header.push_str(&" ".repeat(117 - header.len()));
    header.push('\n');
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), values].concat()
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// An entry of an archive: name, file, whether it is deflated, and the size it claims.
struct Entry(&'static str, Vec<u8>, bool, Option<u32>);

/// A zip archive with the 64-bit field that numpy writes for the entry's size.
fn npz(entries: &[Entry]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for Entry(name, contents, deflate, claimed) in entries {
        let name = format!("{name}.npy");
        let size = claimed.unwrap_or(contents.len() as u32);
        let stored = if *deflate { deflated(contents) } else { contents.clone() };
        let offset = file.len() as u32;
        let method: u16 = if *deflate { 8 } else { 0 };
        let mut checksum = flate2::Crc::new();
        checksum.update(contents);
        let checksum = checksum.sum();
        let common = |csize: u32, size: u32, extra: u16| {
            let mut bytes = [45u16, 0, method, 0, 0x21].map(u16::to_le_bytes).concat();
            bytes.extend([checksum, csize, size].map(u32::to_le_bytes).concat());
            bytes.extend([name.len() as u16, extra].map(u16::to_le_bytes).concat());
            bytes
        };
        file.extend(b"PK\x03\x04");
        file.extend(common(stored.len() as u32, size, 0));
        file.extend(name.as_bytes());
        file.extend(&stored);
        directory.extend(b"PK\x01\x02\x2d\x00");
        directory.extend(common(stored.len() as u32, u32::MAX, 12));
        directory.extend([0u8; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
        directory.extend([1, 8].map(u16::to_le_bytes).concat());
        directory.extend(u64::from(size).to_le_bytes());
    }
    let (start, len, count) = (file.len() as u32, directory.len() as u32, entries.len() as u16);
    file.extend(directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([count, count].map(u16::to_le_bytes).concat());
    file.extend([len, start].map(u32::to_le_bytes).concat());
    file.extend([0, 0]);
    file
}

fn deflated(contents: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let (start, end) = contents.split_at(contents.len() / 2);
    encoder.write_all(start).unwrap();
    encoder.flush().unwrap();
    encoder.write_all(end).unwrap();
    encoder.finish().unwrap()
}

fn input(name: &str, data_type: DataType, axes: &[usize]) -> Input {
    let axes = axes.iter().map(|&size| if size == 0 { Axis::Open(None) } else { Axis::Fixed(size) }).collect();
    Input { name: name.to_owned(), data_type, axes: Some(axes) }
}

fn write(directory: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, contents).unwrap();
    path
}

fn open(path: &Path, inputs: &[Input]) -> Result<Samples, DataError> {
    SampleSource::Path(path.to_path_buf()).open(inputs, &DataOptions::default())
}

fn values(samples: &mut Samples, index: usize) -> Vec<Vec<f32>> {
    samples.sample(index).unwrap().iter().map(|(_, array)| array.to_f32s().into_owned()).collect()
}

#[test]
fn stored_and_deflated_npz_entries_give_their_rows() {
    let directory = tempfile::tempdir().unwrap();
    let ids: Vec<u8> = (0..6i64).flat_map(i64::to_le_bytes).collect();
    let entries = [
        Entry("mask", npy("<f4", &[3, 2], &f32s((0..6).map(|v| v as f32 / 2.0))), false, None),
        Entry("ids", npy("<i8", &[3, 2], &ids), true, None),
    ];
    let path = write(directory.path(), "calib.npz", &npz(&entries));
    let inputs = [input("ids", DataType::INT32, &[0, 2]), input("mask", DataType::FLOAT, &[1, 2])];
    let mut samples = open(&path, &inputs).unwrap();
    assert_eq!((samples.len(), samples.random()), (3, false));
    assert_eq!(values(&mut samples, 1), [vec![2.0, 3.0], vec![1.0, 1.5]]);
    let first = samples.sample(0).unwrap();
    assert_eq!((first[0].0, first[0].1.shape(), first[0].1.data_type()), ("ids", &[1, 2][..], DataType::INT32));
    assert_eq!(values(&mut samples, 2), [vec![4.0, 5.0], vec![2.0, 2.5]]);
    let options = DataOptions { num_samples: Some(2), ..DataOptions::default() };
    assert_eq!(SampleSource::Path(path.clone()).open(&inputs, &options).unwrap().len(), 2);
    assert_eq!(SampleSource::Path(path).labels("ids").unwrap(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn fortran_order_npy_is_read_by_rows() {
    let directory = tempfile::tempdir().unwrap();
    // Rows 0 1, 2 3, 4 5.
    let columns = npy("<f4", &[3, 2], &f32s([0.0, 2.0, 4.0, 1.0, 3.0, 5.0]));
    let at = columns.windows(5).position(|bytes| bytes == b"False").unwrap();
    let file = [&columns[..at], b"True ", &columns[at + 5..]].concat();
    let plain = write(directory.path(), "plain.npy", &file);
    let entries = [Entry("x", file.clone(), false, None)];
    let stored = write(directory.path(), "stored.npz", &npz(&entries));
    let packed = write(directory.path(), "packed.npz", &npz(&[Entry("x", file, true, None)]));
    for path in [plain, stored, packed] {
        let mut samples = open(&path, &[input("x", DataType::FLOAT, &[1, 2])]).unwrap();
        let rows: Vec<_> = (0..3).map(|index| values(&mut samples, index).concat()).collect();
        assert_eq!(rows, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "{}", path.display());
    }
}

#[test]
fn numbered_arrays_are_samples_in_numeric_order() {
    let directory = tempfile::tempdir().unwrap();
    let one = |name, value: f32| Entry(name, npy("<f4", &[1, 1], &f32s([value])), false, None);
    let path = write(directory.path(), "c.npz", &npz(&[one("x_10", 10.0), one("x_9", 9.0), one("x_0", 0.0)]));
    let mut samples = open(&path, &[input("x", DataType::FLOAT, &[1, 1])]).unwrap();
    assert_eq!((values(&mut samples, 0), values(&mut samples, 2)), (vec![vec![0.0]], vec![vec![10.0]]));
}

#[test]
fn npy_folders_are_samples_or_inputs() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "b.npy", &npy("<f4", &[2], &f32s([3.0, 4.0])));
    write(directory.path(), "a.npy", &npy("<f4", &[1, 2], &f32s([1.0, 2.0])));
    let mut samples = open(directory.path(), &[input("x", DataType::FLOAT, &[0, 2])]).unwrap();
    assert_eq!((values(&mut samples, 0), values(&mut samples, 1)), (vec![vec![1.0, 2.0]], vec![vec![3.0, 4.0]]));
    let two = [input("b", DataType::FLOAT, &[0, 2]), input("a", DataType::FLOAT, &[0, 2])];
    let mut samples = open(directory.path(), &two).unwrap();
    assert_eq!(values(&mut samples, 0), [vec![3.0, 4.0], vec![1.0, 2.0]]);
}

#[test]
fn data_that_do_not_fit_the_model_are_refused_first() {
    let directory = tempfile::tempdir().unwrap();
    let path =
        write(directory.path(), "x.npz", &npz(&[Entry("x", npy("<f4", &[4, 3], &f32s([0.5; 12])), false, None)]));
    let missing = open(&path, &[input("a", DataType::FLOAT, &[0, 3]), input("b", DataType::FLOAT, &[0, 3])]);
    let message = missing.err().unwrap().to_string();
    assert_eq!(message, "the data has no array for the model's input `a`; it has `x`");
    let shape = open(&path, &[input("x", DataType::FLOAT, &[0, 5])]).err().unwrap().to_string();
    assert!(shape.contains("[4, 3]") && shape.contains("[?, 5]"), "{shape}");
    let mut integers = open(&path, &[input("x", DataType::INT64, &[0, 3])]).unwrap();
    assert!(integers.sample(0).unwrap_err().to_string().contains("float"));
    let batch = open(&path, &[input("x", DataType::FLOAT, &[8, 3])]).err().unwrap();
    assert!(batch.to_string().contains("not one sample"), "{batch}");
}

#[test]
fn non_finite_data_name_their_position() {
    let directory = tempfile::tempdir().unwrap();
    for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinity"), (f32::NEG_INFINITY, "minus infinity")] {
        let rows = f32s([0.0, 1.0, 2.0, 3.0, 4.0, bad]);
        let path = write(directory.path(), "c.npz", &npz(&[Entry("x", npy("<f4", &[3, 2], &rows), true, None)]));
        let mut samples = open(&path, &[input("x", DataType::FLOAT, &[0, 2])]).unwrap();
        assert!(samples.sample(1).is_ok());
        let error = samples.sample(2).unwrap_err();
        let expected = format!("{}[x.npy]: sample 2 for input `x` has {name} at [0, 1]", path.display());
        assert_eq!((error.to_string(), error.hint().is_some()), (expected, true));
    }
    let large = write(directory.path(), "h.npz", &npz(&[Entry("x", npy("<f4", &[1, 1], &f32s([1e6])), false, None)]));
    let error = open(&large, &[input("x", DataType::FLOAT16, &[0, 1])]).unwrap().sample(0).unwrap_err();
    assert!(error.to_string().contains("infinity"), "{error}");
}

#[test]
fn hostile_archives_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let x = [input("x", DataType::FLOAT, &[0, 3])];
    let refused = |name: &str, bytes: &[u8]| {
        let path = write(directory.path(), name, bytes);
        open(&path, &x).err().unwrap_or_else(|| panic!("{name} was read")).to_string()
    };
    let good = npy("<f4", &[2, 3], &f32s([0.0; 6]));
    let bomb = npy("<f4", &[1 << 26, 3], &[]);
    assert!(refused("bomb.npz", &npz(&[Entry("x", bomb, true, Some(3 << 28))])).contains("cannot be"));
    assert!(
        refused("claims.npz", &npz(&[Entry("x", good.clone(), true, Some(9999))])).contains("where its shape needs")
    );
    let short = npy("<f4", &[2, 3], &f32s([0.0; 5]));
    assert!(refused("short.npz", &npz(&[Entry("x", short, false, None)])).contains("where its shape needs"));
    let whole = npz(&[Entry("x", good, false, None)]);
    for end in 0..whole.len() {
        refused("cut.npz", &whole[..end]);
    }
    for place in 0..whole.len() {
        // A flipped byte never causes a panic.
        let mut flipped = whole.clone();
        flipped[place] ^= 0xff;
        let path = write(directory.path(), "flipped.npz", &flipped);
        if let Ok(mut samples) = open(&path, &x) {
            let _ = samples.sample(0);
        }
    }
    assert!(refused("no.npz", b"not a zip").contains("not an .npz file, or truncated"));
    assert!(refused("pickle.pkl", b"").contains("its name ends in none of"));
}

#[test]
fn corrupt_compressed_data_are_refused_when_opened() {
    let directory = tempfile::tempdir().unwrap();
    let values = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32);
    let mut bytes = npz(&[Entry("x", npy("<f4", &[100_000, 3], &f32s(values)), true, None)]);
    // Behind the empty block that ends the first half: a block of the type that does not exist.
    let marker = bytes.windows(4).position(|w| w == [0, 0, 0xff, 0xff]).unwrap();
    bytes[marker + 4] = 0x07;
    let path = write(directory.path(), "x.npz", &bytes);
    let error = open(&path, &[input("x", DataType::FLOAT, &[0, 3])]).err().unwrap();
    assert!(error.to_string().contains("broken compressed data"), "{error}");
}

#[cfg(feature = "images")]
#[test]
fn images_are_preprocessed_as_declared() {
    let directory = tempfile::tempdir().unwrap();
    let image = image::RgbImage::from_fn(6, 4, |x, y| image::Rgb([x as u8 * 10, y as u8 * 10, 200]));
    std::fs::create_dir(directory.path().join("class")).unwrap();
    image.save(directory.path().join("class/one.png")).unwrap();
    let run = |steps: &str, input: Input| {
        let preprocessing = Some(steps.parse().unwrap());
        let options = DataOptions { preprocessing, ..DataOptions::default() };
        let mut samples = SampleSource::Path(directory.path().to_path_buf()).open(&[input], &options)?;
        let shape = samples.sample(0)?[0].1.shape().to_vec();
        Ok::<_, DataError>((shape, values(&mut samples, 0).remove(0)))
    };
    let (shape, values) = run("crop=2,scale=1", input("x", DataType::FLOAT, &[0, 3, 2, 2])).unwrap();
    assert_eq!(shape, [1, 3, 2, 2]);
    assert_eq!(values, [20.0, 30.0, 20.0, 30.0, 10.0, 10.0, 20.0, 20.0, 200.0, 200.0, 200.0, 200.0]);
    let bgr = "crop=1,scale=0.1,mean=1:2:3,std=2,layout=nhwc,channels=bgr";
    let (shape, values) = run(bgr, input("x", DataType::FLOAT, &[0, 1, 1, 3])).unwrap();
    assert_eq!((shape, values), (vec![1, 1, 1, 3], vec![9.5, 0.0, -0.5]));
    let (shape, _) = run("size=2", input("x", DataType::UINT8, &[1, 3, 2, 3])).unwrap_or((vec![], vec![]));
    assert_eq!(shape, [0usize; 0], "scaled values are not integers");
    assert_eq!(run("size=2,scale=1", input("x", DataType::UINT8, &[1, 3, 2, 3])).unwrap().0, [1, 3, 2, 3]);
    assert!(run("size=2", input("x", DataType::FLOAT, &[1, 3, 5, 5])).is_err());
    let (shape, values) = run("pad=6x8,fill=9,scale=1", input("x", DataType::FLOAT, &[0, 3, 6, 8])).unwrap();
    assert_eq!((shape, &values[..8]), (vec![1, 3, 6, 8], &[9.0; 8][..]));
    assert_eq!(values[8..16], [9.0, 0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 9.0]);
    let (shape, _) = run("letterbox=4x12", input("x", DataType::FLOAT, &[0, 3, 4, 12])).unwrap();
    assert_eq!(shape, [1, 3, 4, 12]);
    let undeclared = open(directory.path(), &[input("x", DataType::FLOAT, &[0, 3, 2, 2])]);
    assert!(matches!(undeclared, Err(DataError::Preprocessing(_))));
}

#[test]
fn channels_are_moved_last() {
    let image = Array::of(vec![2, 2, 1, 3], (0..12).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let turned = image.channels_last().unwrap();
    assert_eq!(turned.shape(), [2, 1, 3, 2]);
    assert_eq!(turned.f32s().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 9.0, 7.0, 10.0, 8.0, 11.0]);
    assert!(Array::of(vec![2], vec![0.0f32; 2]).unwrap().channels_last().is_none());
}

#[test]
fn constant_float_inputs_are_found_and_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let zeros: Vec<u8> = [0i64; 6].into_iter().flat_map(i64::to_le_bytes).collect();
    let entries = [
        Entry("x", npy("<f4", &[3, 2], &f32s([0.0; 6])), false, None),
        Entry("late", npy("<f4", &[3, 2], &f32s([0.5, 0.5, 0.5, 0.5, 0.5, 1.0])), false, None),
        Entry("types", npy("<i8", &[3, 2], &zeros), false, None),
    ];
    let path = write(directory.path(), "calib.npz", &npz(&entries));
    let inputs = [
        input("x", DataType::FLOAT, &[0, 2]),
        input("late", DataType::FLOAT, &[0, 2]),
        input("types", DataType::INT64, &[0, 2]),
    ];
    let mut samples = open(&path, &inputs).unwrap();
    assert_eq!(samples.constant_inputs().unwrap(), [("x".to_owned(), 0.0)]);
    let options = DataOptions { num_samples: Some(2), ..DataOptions::default() };
    let mut first = SampleSource::Path(path).open(&inputs, &options).unwrap();
    assert_eq!(first.constant_inputs().unwrap(), [("late".to_owned(), 0.5), ("x".to_owned(), 0.0)]);
}

#[test]
fn npz_entries_with_wrong_checksums_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for deflate in [false, true] {
        let mut file = npz(&[Entry("x", npy("<f4", &[64, 2], &f32s((0..128).map(|v| v as f32))), deflate, None)]);
        let inputs = [input("x", DataType::FLOAT, &[0, 2])];
        assert!(open(&write(directory.path(), "whole.npz", &file), &inputs).is_ok());
        // The checksum in the directory, so that the compressed data stay readable.
        let at = file.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap() + 16;
        file[at] ^= 1;
        let error = open(&write(directory.path(), "damaged.npz", &file), &inputs).err().unwrap();
        assert!(error.to_string().contains("checksum"), "{error}");
    }
}
