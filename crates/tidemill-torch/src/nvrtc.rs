//! Kernels of our own on NVIDIA GPUs: compiled where they run, by NVRTC, which PyTorch's wheels bring, and launched by the driver.
//! Nothing of CUDA is needed to build this.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use crate::cuda::OnDevice;
use crate::{Error, ffi};

type Program = *mut c_void;
type Function = *mut c_void;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// Compiled kernels on one GPU.
#[derive(Debug)]
pub struct Kernels {
    functions: HashMap<&'static str, Function>,
    launch: *mut c_void,
    device: i32,
}

// SAFETY: the driver's handles may be used on any thread; they live as long as the process.
unsafe impl Send for Kernels {}
// SAFETY: as above, and nothing changes them.
unsafe impl Sync for Kernels {}

/// The launch of a kernel: blocks in x and y, threads of a block, and bytes of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks.
    pub grid: [usize; 2],
    /// Threads of each.
    pub threads: usize,
    /// Bytes that each shares.
    pub shared: usize,
}

impl Kernels {
    /// Compiles `source` with `options` for a GPU, and finds the kernels of these names in it.
    ///
    /// # Errors
    /// If there is no NVRTC or no driver, or what they say of the source.
    pub fn compile(
        source: &CStr,
        options: &[&CStr],
        names: &[&'static CStr],
        device: i32,
    ) -> Result<Self, Error> {
        let architecture = architecture(device)?;
        let options: Vec<&CStr> =
            [architecture.as_c_str()].into_iter().chain(options.iter().copied()).collect();
        let machine_code = machine_code(source, &options)?;
        let _on_device = OnDevice::enter(device)?;
        let mut module = null_mut();
        // SAFETY: these are the signatures of the driver's API; an object of NVRTC's knows its own length.
        unsafe {
            type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
            let load: Load = transmute(function(c"cuModuleLoadData")?);
            succeeded("cuModuleLoadData", load(&mut module, machine_code.as_ptr().cast()))?;
            type Get = unsafe extern "C" fn(*mut Function, *mut c_void, *const c_char) -> c_int;
            let get: Get = transmute(function(c"cuModuleGetFunction")?);
            let found = names.iter().map(|name| {
                let mut kernel = null_mut();
                succeeded("cuModuleGetFunction", get(&mut kernel, module, name.as_ptr()))?;
                Ok((name.to_str().unwrap_or_default(), kernel))
            });
            Ok(Self {
                functions: found.collect::<Result<_, Error>>()?,
                launch: function(c"cuLaunchKernel")?,
                device,
            })
        }
    }

    /// Has the GPU run a kernel after what libtorch has told it to do so far.
    ///
    /// # Safety
    /// `arguments` must point to values of the kernel's parameters, and what pointers among them point to must be there until
    /// the GPU has done this, as memory of libtorch's tensors is.
    ///
    /// # Errors
    /// If there is no such kernel, or the driver refuses.
    pub unsafe fn run(&self, name: &str, how: Launch, arguments: &mut [*mut c_void]) -> Result<(), Error> {
        let Some(kernel) = self.functions.get(name) else {
            return Err(Error::Torch(format!("there is no kernel {name}")));
        };
        let _on_device = OnDevice::enter(self.device)?;
        let mut stream = null_mut();
        // SAFETY: the shim writes a pointer.
        ffi::check("gpu_stream", unsafe { ffi::tm_gpu_stream(self.device, &mut stream) })?;
        type Run = unsafe extern "C" fn(
            Function,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> c_int;
        let Launch { grid: [x, y], threads, shared } = how;
        // SAFETY: this is the signature of the driver's API, and the rest is as the caller promises.
        let answer = unsafe {
            let run: Run = transmute(self.launch);
            let [x, y, threads, shared] = [x, y, threads, shared].map(|n| n as c_uint);
            run(*kernel, x, y, 1, threads, 1, 1, shared, stream, arguments.as_mut_ptr(), null_mut())
        };
        succeeded("cuLaunchKernel", answer)
    }
}

/// The option that says which GPU to compile for.
fn architecture(device: i32) -> Result<CString, Error> {
    let [major, minor] = capability(device)?;
    Ok(CString::new(format!("--gpu-architecture=sm_{major}{minor}")).unwrap_or_default())
}

/// A GPU's compute capability, major and minor.
///
/// # Errors
/// If there is no driver, or no such GPU.
pub(crate) fn capability(device: i32) -> Result<[i32; 2], Error> {
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // SAFETY: this is the signature of the driver's API.
    let attribute: Attribute = unsafe { transmute(function(c"cuDeviceGetAttribute")?) };
    let mut capability = [0; 2];
    for (value, which) in capability.iter_mut().zip(CAPABILITY) {
        // SAFETY: as above. Devices have the numbers that libtorch gives them.
        succeeded("cuDeviceGetAttribute", unsafe { attribute(value, which, device) })?;
    }
    Ok(capability)
}

/// What NVRTC makes of a source. (Of PTX in its place a driver that is older than NVRTC takes nothing, though it may be new enough for
/// the rest of PyTorch.)
fn machine_code(source: &CStr, options: &[&CStr]) -> Result<Vec<u8>, Error> {
    type Create = unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
    type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
    let mut program = null_mut();
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: these are the signatures of NVRTC; all texts live until it returns.
    unsafe {
        let create: Create = transmute(function(c"nvrtcCreateProgram")?);
        let (no_headers, no_names) = (std::ptr::null(), std::ptr::null());
        let answer = create(&mut program, source.as_ptr(), c"kernels.cu".as_ptr(), 0, no_headers, no_names);
        succeeded("nvrtcCreateProgram", answer)?;
        let compile: Compile = transmute(function(c"nvrtcCompileProgram")?);
        let answer = compile(program, options.len() as c_int, options.as_ptr());
        let log = bytes_of(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog");
        let made = match answer {
            0 => bytes_of(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN"),
            _ => Err(Error::Torch(format!("nvrtc: {}", String::from_utf8_lossy(&log?)))),
        };
        let destroy: Destroy = transmute(function(c"nvrtcDestroyProgram")?);
        succeeded("nvrtcDestroyProgram", destroy(&mut program))?;
        made
    }
}

/// What there is of a program; a text with the zero at its end.
///
/// # Safety
/// It must be a program of NVRTC's, and these the names of its functions for what is wanted and its size.
unsafe fn bytes_of(program: Program, size: &CStr, wanted: &CStr) -> Result<Vec<u8>, Error> {
    type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
    type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
    let mut length = 0;
    // SAFETY: as the caller promises.
    unsafe {
        let size: Size = transmute(function(size)?);
        succeeded("the size of what NVRTC has written", size(program, &mut length))?;
        let mut bytes = vec![0u8; length];
        let wanted: Bytes = transmute(function(wanted)?);
        succeeded("what NVRTC has written", wanted(program, bytes.as_mut_ptr().cast()))?;
        Ok(bytes)
    }
}

fn function(name: &CStr) -> Result<*mut c_void, Error> {
    let mut found = null_mut();
    // SAFETY: the shim writes a pointer, and may run the initialisers of libraries that it loads.
    ffi::check("gpu_function", unsafe { ffi::tm_gpu_function(name.as_ptr(), &mut found) })?;
    Ok(found)
}

fn succeeded(what: &str, answer: c_int) -> Result<(), Error> {
    if answer == 0 { Ok(()) } else { Err(Error::Torch(format!("{what} answers {answer}"))) }
}
