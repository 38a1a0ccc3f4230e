//! Compiles kernels on the machine where they run, by NVRTC, which PyTorch's wheels bring, keeps them on
//! disk, and launches them through the driver. Nothing of CUDA is needed to build this crate.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::iter;
use std::mem::transmute;
use std::ptr::null_mut;

use super::device::DeviceGuard;
use super::kernel_cache::{KernelCache, KernelKey};
use crate::{Error, ffi};

type NvrtcProgram = *mut c_void;
type Function = *mut c_void;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

/// Compiled kernels on one GPU.
#[derive(Debug)]
pub struct Kernels {
    functions: HashMap<&'static str, Function>,
    launch: *mut c_void,
    device: i32,
}

// SAFETY: the driver's handles may be used on any thread; they live as long as the process.
unsafe impl Send for Kernels {}
// SAFETY: the same handles, and nothing changes them.
unsafe impl Sync for Kernels {}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks in x and y.
    pub grid: [usize; 2],
    /// Threads of each block.
    pub threads: usize,
    /// Bytes of dynamic shared memory of each block.
    pub shared_bytes: usize,
}

/// A source with everything that says how it is compiled for a GPU.
#[derive(Clone, Debug)]
pub struct Program {
    source: &'static CStr,
    options: Vec<CString>,
    key: KernelKey,
}

impl Program {
    /// `source` with `options` for the architecture of a GPU.
    ///
    /// # Errors
    /// If there is no NVRTC, no driver or no such GPU.
    pub fn new(source: &'static CStr, options: &[&CStr], device: i32) -> Result<Self, Error> {
        let options: Vec<CString> = iter::once(architecture_option(device)?)
            .chain(options.iter().copied().map(CString::from))
            .collect();
        let key = KernelKey::new(nvrtc_version()?, source, &options);
        Ok(Self { source, options, key })
    }

    /// The machine code that an earlier process has compiled and stored.
    pub fn stored(&self) -> Option<Vec<u8>> {
        KernelCache::in_user_cache()?.get(self.key)
    }

    /// Compiles the source, and stores its machine code for later processes. Takes about a second, and
    /// nothing of the GPU.
    ///
    /// # Errors
    /// NVRTC's message if it refuses the source.
    pub fn compile(&self) -> Result<Vec<u8>, Error> {
        let machine_code = compile_to_machine_code(self.source, &self.options)?;
        if let Some(Err(error)) = KernelCache::in_user_cache().map(|cache| cache.put(self.key, &machine_code))
        {
            tracing::debug!("compiled kernels are not kept for the next start: {error}");
        }
        Ok(machine_code)
    }
}

impl Kernels {
    /// Loads machine code of [`Program`]'s onto a GPU, and looks up the kernels of these names.
    ///
    /// # Errors
    /// If there is no driver, or it refuses the code.
    pub fn load(machine_code: &[u8], names: &[&'static CStr], device: i32) -> Result<Self, Error> {
        let _device_guard = DeviceGuard::enter(device)?;
        let mut module = null_mut();
        // SAFETY: these are the signatures of the driver's API; a CUBIN of NVRTC's knows its own
        // length.
        unsafe {
            type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
            let load: Load = transmute(find_function(c"cuModuleLoadData")?);
            check_status("cuModuleLoadData", load(&mut module, machine_code.as_ptr().cast()))?;
            type Get = unsafe extern "C" fn(*mut Function, *mut c_void, *const c_char) -> c_int;
            let get: Get = transmute(find_function(c"cuModuleGetFunction")?);
            let functions = names.iter().map(|name| {
                let mut kernel = null_mut();
                check_status("cuModuleGetFunction", get(&mut kernel, module, name.as_ptr()))?;
                Ok((name.to_str().unwrap_or_default(), kernel))
            });
            Ok(Self {
                functions: functions.collect::<Result<_, Error>>()?,
                launch: find_function(c"cuLaunchKernel")?,
                device,
            })
        }
    }

    /// Launches a kernel on libtorch's current stream.
    ///
    /// # Safety
    /// `arguments` must point to values of the kernel's parameters. What pointers among them point
    /// to must stay until the GPU has run the kernel, as memory of libtorch's tensors does.
    ///
    /// # Errors
    /// If there is no such kernel, or the driver refuses.
    pub unsafe fn launch(
        &self,
        name: &str,
        config: LaunchConfig,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Error> {
        let Some(kernel) = self.functions.get(name) else {
            return Err(Error::Torch(format!("there is no kernel {name}")));
        };
        let _device_guard = DeviceGuard::enter(self.device)?;
        let mut stream = null_mut();
        // SAFETY: the shim writes a pointer.
        ffi::check("current_stream", unsafe { ffi::tm_cuda_current_stream(self.device, &mut stream) })?;
        type Launch = unsafe extern "C" fn(
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
        let LaunchConfig { grid: [x, y], threads, shared_bytes } = config;
        // SAFETY: this is the signature of the driver's API, and the caller promises the rest.
        let status = unsafe {
            let launch: Launch = transmute(self.launch);
            let [x, y, threads, shared] = [x, y, threads, shared_bytes].map(|n| n as c_uint);
            launch(*kernel, x, y, 1, threads, 1, 1, shared, stream, arguments.as_mut_ptr(), null_mut())
        };
        check_status("cuLaunchKernel", status)
    }
}

/// The compiler option that names the GPU's architecture.
fn architecture_option(device: i32) -> Result<CString, Error> {
    let [major, minor] = compute_capability(device)?;
    Ok(CString::new(format!("--gpu-architecture=sm_{major}{minor}")).unwrap_or_default())
}

/// A GPU's compute capability, major and minor.
///
/// # Errors
/// If there is no driver, or no such GPU.
pub(crate) fn compute_capability(device: i32) -> Result<[i32; 2], Error> {
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // SAFETY: this is the signature of the driver's API.
    let get_attribute: GetAttribute = unsafe { transmute(find_function(c"cuDeviceGetAttribute")?) };
    let mut capability = [0; 2];
    for (value, attribute) in capability.iter_mut().zip(COMPUTE_CAPABILITY) {
        // SAFETY: the driver writes one number. Its devices have the numbers that libtorch gives
        // them.
        check_status("cuDeviceGetAttribute", unsafe { get_attribute(value, attribute, device) })?;
    }
    Ok(capability)
}

/// NVRTC's version, major and minor.
fn nvrtc_version() -> Result<[i32; 2], Error> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let [mut major, mut minor] = [0; 2];
    // SAFETY: this is the signature of NVRTC's function, which writes two numbers.
    check_status("nvrtcVersion", unsafe {
        let version: Version = transmute(find_function(c"nvrtcVersion")?);
        version(&mut major, &mut minor)
    })?;
    Ok([major, minor])
}

/// Compiles a source to a CUBIN. (PTX instead would need a driver that is not older than NVRTC;
/// such a driver can be too old for that though it is new enough for the rest of PyTorch.)
fn compile_to_machine_code(source: &CStr, options: &[CString]) -> Result<Vec<u8>, Error> {
    type Create = unsafe extern "C" fn(
        *mut NvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    type Compile = unsafe extern "C" fn(NvrtcProgram, c_int, *const *const c_char) -> c_int;
    type Destroy = unsafe extern "C" fn(*mut NvrtcProgram) -> c_int;
    let mut program = null_mut();
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: these are the signatures of NVRTC; all texts live until it returns.
    unsafe {
        let create: Create = transmute(find_function(c"nvrtcCreateProgram")?);
        let (no_headers, no_names) = (std::ptr::null(), std::ptr::null());
        let status = create(&mut program, source.as_ptr(), c"kernels.cu".as_ptr(), 0, no_headers, no_names);
        check_status("nvrtcCreateProgram", status)?;
        let compile: Compile = transmute(find_function(c"nvrtcCompileProgram")?);
        let status = compile(program, options.len() as c_int, options.as_ptr());
        let log = read_output(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog");
        let machine_code = match status {
            0 => read_output(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN"),
            _ => Err(Error::Torch(format!("nvrtc: {}", String::from_utf8_lossy(&log?)))),
        };
        let destroy: Destroy = transmute(find_function(c"nvrtcDestroyProgram")?);
        check_status("nvrtcDestroyProgram", destroy(&mut program))?;
        machine_code
    }
}

/// Reads the log (a text with the zero at its end) or the machine code of a program.
///
/// # Safety
/// `program` must be a program of NVRTC's; `get_size` and `get_bytes` must name NVRTC's functions
/// for the size and the bytes of one of its outputs.
unsafe fn read_output(program: NvrtcProgram, get_size: &CStr, get_bytes: &CStr) -> Result<Vec<u8>, Error> {
    type GetSize = unsafe extern "C" fn(NvrtcProgram, *mut usize) -> c_int;
    type GetBytes = unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> c_int;
    let mut length = 0;
    // SAFETY: the caller promises that the functions have these signatures.
    unsafe {
        let size_of_output: GetSize = transmute(find_function(get_size)?);
        check_status(&get_size.to_string_lossy(), size_of_output(program, &mut length))?;
        let mut bytes = vec![0u8; length];
        let copy_output: GetBytes = transmute(find_function(get_bytes)?);
        check_status(&get_bytes.to_string_lossy(), copy_output(program, bytes.as_mut_ptr().cast()))?;
        Ok(bytes)
    }
}

/// A function of NVRTC or of the driver.
fn find_function(name: &CStr) -> Result<*mut c_void, Error> {
    let mut found = null_mut();
    // SAFETY: the shim writes a pointer, and may run the initialisers of libraries that it loads.
    ffi::check("cuda_symbol", unsafe { ffi::tm_cuda_symbol(name.as_ptr(), &mut found) })?;
    Ok(found)
}

fn check_status(function: &str, status: c_int) -> Result<(), Error> {
    if status == 0 { Ok(()) } else { Err(Error::Torch(format!("{function} returned error {status}"))) }
}
