//! NCCL: sums over the GPUs of several processes. The library is loaded on first use, so that a program built with CUDA
//! runs without it. Launching the processes and passing the id between them is left to the caller.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;

use candle_core::{DType, Device, Result, Tensor, bail};
use libloading::Library;

use super::View;

/// The library's names, the usual one first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// Id of a group, created by the first rank; processes that have it can join.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NcclId([u8; 128]);

type Communicator = *mut c_void;
type InitRank = unsafe extern "C" fn(*mut Communicator, c_int, NcclId, c_int) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// The functions in use.
struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut NcclId) -> c_int,
    init_rank: InitRank,
    all_reduce: AllReduce,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    abort: unsafe extern "C" fn(Communicator) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the functions alive.
    _library: Library,
}

/// The loaded library.
pub struct Nccl {
    functions: Functions,
}

impl Nccl {
    /// Loads it from the dynamic linker's search path.
    pub fn load() -> Result<Self> {
        // SAFETY: loading NVIDIA's library only sets up its own state.
        let library = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let Some(library) = library else { bail!("{} is not found", NAMES[0]) };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the fields have the types of nccl.h, which are the same in all 2.x versions.
                match unsafe { library.get($name) } {
                    Ok(function) => *function,
                    Err(error) => bail!("{}: {error}", NAMES[0]),
                }
            };
        }
        let functions = Functions {
            get_version: function!(b"ncclGetVersion"),
            get_unique_id: function!(b"ncclGetUniqueId"),
            init_rank: function!(b"ncclCommInitRank"),
            all_reduce: function!(b"ncclAllReduce"),
            group_start: function!(b"ncclGroupStart"),
            group_end: function!(b"ncclGroupEnd"),
            abort: function!(b"ncclCommAbort"),
            error_string: function!(b"ncclGetErrorString"),
            _library: library,
        };
        Ok(Self { functions })
    }

    /// For example 2.28.3.
    pub fn version(&self) -> String {
        let mut version = 0;
        // SAFETY: it writes one int.
        unsafe { (self.functions.get_version)(&raw mut version) };
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// An id for a new group.
    pub fn new_id(&self) -> Result<NcclId> {
        let mut id = NcclId([0; 128]);
        // SAFETY: it writes the 128 bytes of the id.
        self.check(unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Joins a group of `size` with this device; blocks until all others have joined.
    pub fn join(self, id: NcclId, rank: usize, size: usize, device: &Device) -> Result<NcclGroup> {
        let Device::Cuda(cuda) = device else { bail!("NCCL connects NVIDIA GPUs") };
        cuda.cuda_stream().context().bind_to_thread().map_err(candle_core::Error::wrap)?;
        let mut communicator = std::ptr::null_mut();
        // SAFETY: the id came from the library, and the device is bound to this thread.
        let code =
            unsafe { (self.functions.init_rank)(&raw mut communicator, size as c_int, id, rank as c_int) };
        self.check(code)?;
        Ok(NcclGroup { nccl: self, communicator, device: device.clone() })
    }

    fn check(&self, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it returns a constant text for any code.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(code)) };
        bail!("NCCL: {}", text.to_string_lossy())
    }
}

impl NcclId {
    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id from received bytes; `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(NcclId)
    }
}

/// A group of GPUs for collective sums.
pub struct NcclGroup {
    nccl: Nccl,
    communicator: Communicator,
    device: Device,
}

// SAFETY: a communicator may be used from any thread, one at a time; `all_reduce` takes it exclusively.
unsafe impl Send for NcclGroup {}

impl NcclGroup {
    /// Replaces each tensor by its sum over the group, in one launch. The tensors are contiguous f32, nothing else
    /// reads them, and their order is the same on all ranks.
    pub fn sum_in_place(&mut self, tensors: &[Tensor]) -> Result<()> {
        let Device::Cuda(cuda) = &self.device else { bail!("NCCL connects NVIDIA GPUs") };
        let views = tensors.iter().map(|tensor| View::of(tensor)?.expect(DType::F32));
        let views = views.collect::<Result<Vec<_>>>()?;
        let stream = cuda.cuda_stream().cu_stream().cast::<c_void>();
        let functions = &self.nccl.functions;
        // SAFETY: no arguments.
        self.nccl.check(unsafe { (functions.group_start)() })?;
        let mut result = Ok(());
        for view in &views {
            let values = view.pointer as *mut c_void;
            // SAFETY: `len` numbers are there, on the stream's device; their producers run before this and their
            // readers after it on the same stream.
            let code = unsafe {
                (functions.all_reduce)(values, values, view.len, FLOAT32, SUM, self.communicator, stream)
            };
            result = result.and(self.nccl.check(code));
        }
        // SAFETY: no arguments.
        result.and(self.nccl.check(unsafe { (functions.group_end)() }))
    }

    /// The library's version.
    pub fn version(&self) -> String {
        self.nccl.version()
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        // Not `ncclCommDestroy`, which waits for ranks that may have failed. SAFETY: nothing uses the communicator
        // after this.
        unsafe { (self.nccl.functions.abort)(self.communicator) };
    }
}

impl fmt::Debug for NcclGroup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "NcclGroup({})", self.version())
    }
}
