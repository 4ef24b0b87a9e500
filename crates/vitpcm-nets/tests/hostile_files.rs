//! Broken and hostile weight files: an error every time, never a panic, never a call, and never an allocation by
//! the file's word alone.

mod formula;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Device;
use formula::reference;
use vitpcm_nets::{ImportedBackbone, Model, NetsError, WeightFile};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// Notes the largest single allocation of this program.
struct Witness;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
/// Far above what the files here need, far below what they claim.
const MOST: usize = 96 << 20;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Witness {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static WITNESS: Witness = Witness;

/// Opens a file, reads all of its arrays, and imports it as a backbone and as a model.
fn use_file(bytes: Vec<u8>) -> Result<(), NetsError> {
    let file = WeightFile::from_bytes("hostile", bytes)?;
    let read = file.entries().try_for_each(|entry| file.read_f32(entry).map(drop));
    let imported = ImportedBackbone::from_weight_file(&file, None, &Device::Cpu).map(drop);
    let model = Model::from_weight_file(&file, &Device::Cpu).map(drop);
    read.and(model.or(imported))
}

#[track_caller]
fn check_refused(bytes: Vec<u8>, because: &str) {
    let error = use_file(bytes).expect_err("it was taken for good").to_string();
    assert!(error.contains(because), "expected `{because}` in: {error}");
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < MOST, "allocated {largest} bytes at once");
}

fn safetensors(header: &str, num_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + num_bytes, 0);
    file
}

fn zipped(entries: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn torch(pickle: &[u8]) -> Vec<u8> {
    zipped(&[("archive/data.pkl", pickle), ("archive/data/0", &[0; 16])], CompressionMethod::Stored)
}

/// A pickle of `{"x": tensor}`, float, on the 16 bytes of storage 0.
fn pickled_tensor(offset: u8, shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}X\x01\0\0\0xctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    pickle.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ");
    pickle.extend([b'K', offset, b'(']);
    pickle.extend(shape);
    pickle.extend(b"t(");
    pickle.extend(strides);
    pickle.extend(b"t\x89ccollections\nOrderedDict\n)RtRs.");
    pickle
}

fn npy(header: &str, num_bytes: usize) -> Vec<u8> {
    let mut array = b"\x93NUMPY\x01\0".to_vec();
    array.extend((header.len() as u16).to_le_bytes());
    array.extend(header.as_bytes());
    array.resize(array.len() + num_bytes, 0);
    array
}

#[test]
fn safetensors_headers_that_lie_are_refused() {
    let mut four_gigabytes = safetensors("{}", 0);
    four_gigabytes[..8].copy_from_slice(&(4u64 << 30).to_le_bytes());
    check_refused(four_gigabytes, "header too large");
    let mut endless = safetensors("{}", 0);
    endless[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    check_refused(endless, "header too large");
    let mut beyond_the_end = safetensors("{}", 0);
    beyond_the_end[..8].copy_from_slice(&5000u64.to_le_bytes());
    check_refused(beyond_the_end, "invalid header length");

    let entry = |shape: &str, offsets: &str| {
        safetensors(&format!(r#"{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#), 16)
    };
    check_refused(entry("[4]", "[0,17179869184]"), "hostile");
    check_refused(entry("[4294967296,4294967296,2]", "[0,16]"), "hostile");
    check_refused(entry("[4611686018427387904]", "[0,16]"), "hostile");
    check_refused(entry("[4]", "[18446744073709551600,0]"), "hostile");
    check_refused(entry("[3]", "[0,16]"), "hostile");
    check_refused(safetensors(r#"{"x":{"dtype":"F33","shape":[4],"data_offsets":[0,16]}}"#, 16), "F33");
    check_refused(safetensors(&"[".repeat(100_000), 0), "invalid JSON");
    check_refused(b"GIF89a, not weights at all".to_vec(), "not a weight file we know");
}

#[test]
fn an_empty_file_and_a_folder_are_errors_that_name_them() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.safetensors");
    std::fs::write(&empty, b"").unwrap();
    for path in [empty.as_path(), folder.path(), &folder.path().join("absent.pth")] {
        let Err(error) = WeightFile::open(path) else { panic!("{} was opened", path.display()) };
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_pickle_that_calls_is_refused_and_not_executed() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("executed");
    let command = format!("touch {}", marker.display());
    let mut argument = vec![b'X'];
    argument.extend((command.len() as u32).to_le_bytes());
    argument.extend(command.as_bytes());

    let call = |callee: &[u8]| [b"\x80\x02", callee, b"(", &argument, b"tR."].concat();
    let by_stack = call(b"X\x02\0\0\0osX\x06\0\0\0system\x93");
    let class = call(b"csubprocess\nPopen\n");
    for (pickle, global) in [
        (call(b"cos\nsystem\n"), "os.system"),
        (by_stack, "os.system"),
        (class, "subprocess.Popen"),
        (call(b"c__builtin__\neval\n"), "__builtin__.eval"),
        (call(b"ctorch\nload\n"), "torch.load"),
        (call(b"ctorch.storage\n_load_from_bytes\n"), "torch.storage._load_from_bytes"),
    ] {
        let error = use_file(torch(&pickle)).unwrap_err();
        let NetsError::ForbiddenPickle { global: named, .. } = error else {
            panic!("another error: {error}")
        };
        assert_eq!(named, global);
    }
    // The older opcodes that call, and calls of what is allowed with arguments that are not.
    check_refused(torch(&[b"\x80\x02(ios\nsystem\n".as_slice(), &argument, b"."].concat()), "opcode 0x69");
    check_refused(
        torch(&[b"\x80\x02(cargparse\nNamespace\n".as_slice(), &argument, b"o."].concat()),
        "opcode 0x6f",
    );
    check_refused(torch(&call(b"ccollections\nOrderedDict\n")), "OrderedDict with arguments");
    check_refused(torch(&call(b"cargparse\nNamespace\n")), "Namespace with arguments");
    check_refused(torch(&call(b"ctorch._utils\n_rebuild_tensor_v2\n")), "RebuildTensor with arguments");
    assert!(!marker.exists());
}

#[test]
fn pickles_that_make_no_sense_are_refused() {
    check_refused(torch(b""), "truncated");
    check_refused(torch(b"\x80\x02"), "truncated");
    check_refused(torch(b"\x80\x02."), "stack runs empty");
    check_refused(torch(b"\x80\x02N."), "no state dict");
    check_refused(torch(b"\x80\x02Ns."), "stack runs empty");
    check_refused(torch(b"\x80\x02(s."), "takes a mark for a value");
    check_refused(torch(b"\x80\x02(N(N1tt."), "lacks a mark");
    check_refused(torch(b"\x80\x02h\x07."), "never stored");
    check_refused(torch(b"\x80\x02X\xff\xff\xff\xffabc."), "truncated");
    check_refused(torch(b"\x80\x02B\xff\xff\xff\xffabc."), "truncated");
    check_refused(torch(b"\x80\x63."), "protocol 99");
    check_refused(torch(b"\x80\x02NQ."), "no tensor storage");
    // A dict within itself, as the value of the key that state dicts lie under.
    check_refused(torch(b"\x80\x02}q\x00X\x05\0\0\0modelh\x00s."), "no state dict");
    // Two million tuples, one within the other.
    let mut nested = b"\x80\x02N".to_vec();
    nested.resize(2 << 20, 0x85);
    *nested.last_mut().unwrap() = b'.';
    check_refused(torch(&nested), "no state dict");
    nested.push(b'.');
    check_refused(torch(&nested), "state dicts stay below");
    check_refused(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "PyTorch before 1.6");
}

#[test]
fn pickled_tensors_that_exceed_their_storage_are_refused() {
    let four = b"K\x04";
    let long = |bytes: &[u8]| [&[0x8a, bytes.len() as u8], bytes].concat();
    let huge = long(&(1i64 << 62).to_le_bytes());
    let one = b"K\x01";
    let file = WeightFile::from_bytes("good", torch(&pickled_tensor(0, four, one))).unwrap();
    assert_eq!(file.read_f32(file.entry("x").unwrap()).unwrap(), [0.0; 4]);

    check_refused(torch(&pickled_tensor(0, b"K\x05", one)), "needs more than the 16 bytes");
    check_refused(torch(&pickled_tensor(1, four, one)), "needs more than the 12 bytes");
    check_refused(torch(&pickled_tensor(9, four, one)), "begins beyond the end");
    check_refused(torch(&pickled_tensor(0, &huge, one)), "needs more than");
    check_refused(torch(&pickled_tensor(0, &huge, b"K\x00")), "needs more than");
    check_refused(
        torch(&pickled_tensor(0, &[huge.clone(), huge.clone()].concat(), b"K\x01K\x01")),
        "overflows",
    );
    check_refused(torch(&pickled_tensor(0, four, b"K\x02")), "reach beyond the end");
    check_refused(torch(&pickled_tensor(0, four, &huge)), "reach beyond the end");
    check_refused(torch(&pickled_tensor(0, four, &long(&i64::MAX.to_le_bytes()))), "overflow");
    check_refused(torch(&pickled_tensor(0, four, b"K\x01K\x01")), "another number of strides");
    check_refused(torch(&pickled_tensor(0, &long(&(-4i64).to_le_bytes()), one)), "negative");
    let missing = zipped(&[("a/data.pkl", &pickled_tensor(0, four, one))], CompressionMethod::Stored);
    check_refused(missing, "which the zip file lacks");
}

#[test]
fn zip_bombs_and_lying_directories_are_refused() {
    let zeros = vec![0u8; 64 << 20];
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", 16 << 20);
    let bomb = [npy(&header, 0), zeros].concat();
    check_refused(zipped(&[("x.npy", &bomb)], CompressionMethod::Deflated), "inflate more than 16-fold");

    let good = zipped(
        &[("x.npy", &npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8))],
        CompressionMethod::Stored,
    );
    let directory = good.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let end = good.windows(4).position(|bytes| bytes == b"PK\x05\x06").unwrap();
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    check_refused(good.clone(), "no ViT by its tensor names");
    // Both sizes of the entry: four gigabytes.
    check_refused(
        changed(directory + 20, &[0xfe, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff]),
        "beyond the end",
    );
    check_refused(changed(directory + 20, &[0xff; 8]), "lacks a 64-bit length");
    check_refused(changed(directory + 42, &[0xfe, 0xff, 0xff, 0xff]), "not where the directory says");
    check_refused(changed(directory + 10, &[93, 0]), "compression method 93");
    check_refused(changed(directory + 8, &[1]), "encrypted");
    check_refused(changed(end + 16, &[0xfe, 0xff, 0xff, 0xff]), "directory is damaged");
    check_refused(changed(end + 10, &[0xfe, 0xff]), "directory is damaged");
    check_refused(changed(directory + 16, &[0; 4]), "checksum");

    // A zip64 directory that claims 2^60 entries.
    let mut zip64 = good[..end].to_vec();
    zip64.extend(b"PK\x06\x06");
    zip64.extend([0; 28]);
    zip64.extend((1u64 << 60).to_le_bytes());
    zip64.extend((1u64 << 60).to_le_bytes());
    zip64.extend((directory as u64).to_le_bytes());
    zip64.extend(b"PK\x06\x07\0\0\0\0");
    zip64.extend((end as u64).to_le_bytes());
    zip64.extend([1, 0, 0, 0]);
    zip64.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\0\0");
    check_refused(zip64, "directory is damaged");
}

#[test]
fn npy_headers_that_lie_are_refused() {
    let npz = |array: Vec<u8>| zipped(&[("x.npy", &array)], CompressionMethod::Stored);
    let header = |descr: &str, shape: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}")
    };
    check_refused(npz(npy(&header("<f4", "1099511627776,"), 16)), "needs more than the 16 bytes");
    check_refused(npz(npy(&header("<f4", "4294967296, 4294967296"), 16)), "overflows");
    check_refused(npz(npy(&header("<f4", "99999999999999999999"), 16)), "no readable .npy header");
    check_refused(npz(npy(&header("<f4", "-4"), 16)), "no readable .npy header");
    check_refused(npz(npy(&header(">f4", "4,"), 16)), ">f4");
    check_refused(npz(npy(&header("|O", "4,"), 16)), "|O");
    check_refused(npz(npy("", 16)), "no readable .npy header");
    check_refused(npz(b"\x93NUMPY\x02\0\xff\xff\xff\xff{}".to_vec()), "no readable .npy header");
    check_refused(zipped(&[("readme.txt", b"hello")], CompressionMethod::Stored), "neither PyTorch's");
}

/// Cuts a good file at many places and changes bytes at many others: never a panic, never a huge allocation.
#[track_caller]
fn check_survives_damage(good: &[u8], thoroughly: impl Fn(usize) -> bool) {
    const SPARSE: usize = 251;
    for at in (0..good.len()).filter(|&at| at % SPARSE == 0 || thoroughly(at)) {
        assert!(use_file(good[..at].to_vec()).is_err(), "taken for good though cut at {at}");
        for change in [0xff, 0x01, 0x80] {
            let mut damaged = good.to_vec();
            damaged[at] ^= change;
            // May still be good: not every byte matters.
            let _ = use_file(damaged);
        }
    }
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < MOST, "allocated {largest} bytes at once");
}

#[test]
fn damaged_pytorch_files_never_panic() {
    let good = torch(&pickled_tensor(0, b"K\x02K\x02", b"K\x01K\x02"));
    check_survives_damage(&good, |_| true);
    let real = std::fs::read(reference("tiny_teacher.pth")).unwrap();
    check_survives_damage(&real, |at| at % 7 == 0 && at < 6000);
}

#[test]
fn damaged_npz_files_never_panic() {
    let array = npy("{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3), }", 12);
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        check_survives_damage(&zipped(&[("x.npy", &array), ("y.npy", &array)], method), |_| true);
    }
    check_survives_damage(&std::fs::read(reference("tiny_google.npz")).unwrap(), |_| false);
}

#[test]
fn damaged_safetensors_files_never_panic() {
    let good = safetensors(
        r#"{"__metadata__":{"format":"vitpcm-model"},"embedding.patch_embed.proj.weight":{"dtype":"BF16","shape":[1,2,2],"data_offsets":[0,8]},"x":{"dtype":"F64","shape":[],"data_offsets":[8,16]}}"#,
        16,
    );
    check_survives_damage(&good, |_| true);
}

#[test]
fn tensorflow_shards_are_not_read_before_the_arrays_are_known_to_fill_them() {
    let folder = tempfile::tempdir().unwrap();
    let (model, shard) = (folder.path().join("model.json"), folder.path().join("shard.bin"));
    let check = |num_bytes: u64, paths: &str, shape: u64, because: &str| {
        // Takes no room: there is nothing in it.
        std::fs::File::create(&shard).unwrap().set_len(num_bytes).unwrap();
        let weights = format!(r#"[{{"name": "a", "shape": [{shape}], "dtype": "float32"}}]"#);
        let json = format!(r#"{{"weightsManifest": [{{"paths": [{paths}], "weights": {weights}}}]}}"#);
        std::fs::write(&model, json).unwrap();
        let Err(error) = WeightFile::open(&model) else { panic!("it was taken for good") };
        let error = error.to_string();
        assert!(error.contains("model.json") && error.contains(because), "{error}");
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest < MOST, "allocated {largest} bytes at once");
    };
    check(8 << 30, r#""shard.bin""#, 2 << 30, "shards of more than");
    check(1 << 30, r#""shard.bin", "shard.bin", "shard.bin""#, 3 << 28, "shards of more than");
    check(1 << 30, r#""shard.bin""#, 16, "bytes more than the arrays need");
    check(64, r#""shard.bin""#, 1 << 60, "reaches beyond the end");
    check(64, r#""../shard.bin""#, 16, "expected a file name");
}
