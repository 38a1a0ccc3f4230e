//! Kernels as they are compiled for a GPU and a dtype: the cache of compiled kernels, their test
//! before the first use, and launches.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tch::{Kind, Tensor, with_grad};

use super::hardware::WARP;
use crate::Error;
use crate::cuda::nvrtc::{Kernels, LaunchConfig, Program};

/// Kernels that are compiled together.
pub struct KernelSource {
    /// The name by which messages and [`kernel_launch_count`] call them.
    pub name: &'static str,
    /// CUDA C++, with a zero at its end.
    pub text: &'static str,
    pub kernels: &'static [&'static CStr],
    /// Compares the kernels with libtorch's operations on a GPU and for a dtype; fails if they
    /// differ.
    pub self_test: fn(device: usize, kind: Kind) -> Result<(), Error>,
}

/// A source's kernels for a GPU and a dtype.
#[derive(Clone, Copy)]
pub struct KernelTarget {
    pub source: &'static KernelSource,
    pub device: usize,
    /// bf16 or f32.
    pub kind: Kind,
}

/// The state of a target's kernels.
#[derive(Default)]
struct Compiled {
    /// Compiled ahead of the first use, by [`compile_ahead`].
    machine_code: Option<Vec<u8>>,
    /// `None` until they are loaded.
    kernels: Option<Arc<Kernels>>,
    /// `None` until they are tested; an error says why they cannot be used.
    tested: Option<Result<(), String>>,
    /// Launches since the test.
    launches: u64,
}

/// The source's name, the GPU, and whether the dtype is bf16.
type CacheKey = (&'static str, usize, bool);

static CACHE: Mutex<Option<HashMap<CacheKey, Compiled>>> = Mutex::new(None);

fn with_cache<R>(work: impl FnOnce(&mut HashMap<CacheKey, Compiled>) -> R) -> R {
    work(CACHE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Whether the kernels can be used. The first call for a target compiles, loads and tests them. Threads
/// that call meanwhile do so as well and do not wait: the test runs a backward pass, whose thread
/// may be the one that another caller waits for.
pub fn is_usable(source: &'static KernelSource, device: usize, kind: Kind) -> bool {
    let target = KernelTarget { source, device, kind };
    let key = target.cache_key();
    if let Some(usable) = with_cache(|cache| cache.get(&key)?.tested.as_ref().map(Result::is_ok)) {
        return usable;
    }
    let tested = target.load().and_then(|kernels| {
        with_cache(|cache| {
            cache.entry(key).or_default().kernels.get_or_insert_with(|| Arc::new(kernels)).clone()
        });
        // The first use may be where no gradients are wanted.
        with_grad(|| (source.self_test)(device, kind))
    });
    let tested = tested.map_err(|error| error.to_string());
    if let Err(problem) = &tested {
        let name = source.name;
        tracing::warn!(
            "{name} on GPU {device}: Tidemill's kernels cannot be used, so libtorch's operations run instead: {problem}"
        );
    }
    let usable = tested.is_ok();
    with_cache(|cache| cache.entry(key).or_default().tested = Some(tested));
    usable
}

/// Compiles those of `targets` that no earlier process has compiled and stored, all at a time.
/// `before_compiling` is called with their number, if there are any. Kernels that cannot be compiled are
/// reported at their first use.
pub fn compile_ahead(targets: &[KernelTarget], before_compiling: impl FnOnce(usize)) {
    let programs = targets.iter().filter_map(|target| Some((target, target.program().ok()?)));
    let missing: Vec<_> = programs.filter(|(_, program)| program.stored().is_none()).collect();
    if missing.is_empty() {
        return;
    }
    before_compiling(missing.len());
    thread::scope(|scope| {
        for (target, program) in &missing {
            scope.spawn(|| {
                let machine_code = program.compile().ok();
                with_cache(|cache| cache.entry(target.cache_key()).or_default().machine_code = machine_code);
            });
        }
    });
}

/// How often kernels of this crate have been launched on a GPU for tensors of a dtype since they
/// were tested. `name` is `"AdamW"`,
/// `"GEGLU"`, `"GroupNorm"`, `"LayerNorm"` or `"ChannelBias"`. Operations fall back to libtorch
/// without an error; tests see by this count that they did not.
///
/// # Errors
/// If the kernels cannot be used there; the error says why.
pub fn kernel_launch_count(name: &'static str, device: usize, kind: Kind) -> Result<u64, Error> {
    with_cache(|cache| match cache.get(&(name, device, kind == Kind::BFloat16)) {
        Some(Compiled { tested: Some(Err(problem)), .. }) => Err(Error::Torch(problem.clone())),
        compiled => Ok(compiled.map_or(0, |compiled| compiled.launches)),
    })
}

impl KernelTarget {
    fn cache_key(self) -> CacheKey {
        (self.source.name, self.device, self.kind == Kind::BFloat16)
    }

    fn program(self) -> Result<Program, Error> {
        let element = if self.kind == Kind::BFloat16 { c"-DELEMENT=bf16" } else { c"-DELEMENT=float" };
        let source = CStr::from_bytes_with_nul(self.source.text.as_bytes()).unwrap_or_default();
        Program::new(source, &[element], self.device as i32)
    }

    /// Loads the kernels, and compiles them unless that was done ahead or by an earlier process.
    fn load(self) -> Result<Kernels, Error> {
        let program = self.program()?;
        let compiled = with_cache(|cache| cache.get_mut(&self.cache_key())?.machine_code.take());
        let load = |code: Vec<u8>| Kernels::load(&code, self.source.kernels, self.device as i32);
        // A driver that refuses what is stored may take what is compiled anew.
        match compiled.or_else(|| program.stored()).map(load) {
            Some(Ok(kernels)) => Ok(kernels),
            _ => load(program.compile()?),
        }
    }

    /// Launches a kernel. Its arguments are pointers to `tensors`, null for `None`, and then a copy
    /// of each of `values`.
    ///
    /// # Errors
    /// If the kernels are not compiled, or the driver refuses.
    pub fn launch(
        self,
        name: &str,
        config: LaunchConfig,
        tensors: &[Option<&Tensor>],
        values: &[&dyn Any],
    ) -> Result<(), Error> {
        let kernels = with_cache(|cache| {
            let compiled = cache.get_mut(&self.cache_key())?;
            compiled.launches += u64::from(compiled.tested.is_some());
            compiled.kernels.clone()
        });
        let kernels = kernels.ok_or_else(|| Error::Torch(format!("{name} is not compiled")))?;
        let pointer = |tensor: &Option<&Tensor>| tensor.map_or(null_mut(), Tensor::data_ptr);
        let pointers: Vec<*mut c_void> = tensors.iter().map(pointer).collect();
        let values = values.iter().map(|value| address_of(*value));
        let mut arguments: Vec<*mut c_void> = pointers.iter().map(address_of).chain(values).collect();
        // SAFETY: each caller gives a kernel the parameters of its source, in that order. Tensors
        // live until the kernel is launched, and libtorch uses their memory again only behind it on
        // the stream.
        unsafe { kernels.launch(name, config, &mut arguments) }
    }

    /// Launches `sum_columns`, for a source that includes it: adds up `partial_sums` [parts, 2, W],
    /// f32, into two tensors of W numbers.
    ///
    /// # Errors
    /// If the kernels are not compiled, or the driver refuses.
    pub fn sum_columns(self, partial_sums: &Tensor, [first, second]: [&Tensor; 2]) -> Result<(), Error> {
        /// Threads of a block: the more there are, the fewer parts each of them adds up one after
        /// the other.
        const THREADS: usize = 1024;
        let sizes = partial_sums.size();
        let [parts, width] = [sizes[0] as i32, sizes[2] as i32];
        let is_bf16 = i32::from(first.kind() == Kind::BFloat16);
        let config = LaunchConfig {
            grid: [(2 * width as usize).div_ceil(WARP), 1],
            threads: THREADS,
            shared_bytes: 4 * THREADS,
        };
        let tensors = [partial_sums, first, second].map(Some);
        self.launch("sum_columns", config, &tensors, &[&parts, &width, &is_bf16])
    }
}

/// The address at which the driver reads an argument.
fn address_of<T: ?Sized>(argument: &T) -> *mut c_void {
    from_ref(argument).cast_mut().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_cannot_be_compiled_are_not_used() {
        static SOURCE: KernelSource =
            KernelSource { name: "broken", text: "\0", kernels: &[], self_test: |_, _| Ok(()) };
        // The second call takes the result from the cache.
        for _ in 0..2 {
            assert!(!is_usable(&SOURCE, 0, Kind::Float));
        }
        assert!(kernel_launch_count(SOURCE.name, 0, Kind::Float).is_err());
    }
}
