//! Weights that pack better than weights do: refused until the user says that so much may be unpacked. In a program of its
//! own, because the limit is one for the process.

use std::io::Write;

use vitpcm_nets::{WeightFile, raise_weight_limit};
use zip::write::SimpleFileOptions;

#[test]
fn a_file_of_zeros_is_read_once_the_limit_is_raised() {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", 1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros.npz");
    let mut writer = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    writer.start_file("x.npy", options).unwrap();
    writer.write_all(b"\x93NUMPY\x01\0").unwrap();
    writer.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
    writer.write_all(header.as_bytes()).unwrap();
    writer.write_all(&vec![0; 4 << 20]).unwrap();
    writer.finish().unwrap();

    let message = WeightFile::open(&path).map(drop).unwrap_err().to_string();
    assert!(message.contains("inflate more than 16-fold"), "{message}");
    raise_weight_limit(5 << 20);
    assert!(WeightFile::open(&path).is_ok());
}
