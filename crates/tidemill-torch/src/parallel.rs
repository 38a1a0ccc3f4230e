//! Work on the threads that libtorch's own operations run on: threads beside them would fight with them for the cores.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, ffi};

/// Calls `work` with ranges that make up `0..n`, one for each thread; profiles have it as `name`.
///
/// # Errors
/// If `work` panics.
pub fn parallel<W: Fn(Range<usize>) + Sync>(name: &'static CStr, n: usize, work: W) -> Result<(), Error> {
    let job = Job { work, failed: AtomicBool::new(false) };
    let context = std::ptr::from_ref(&job).cast_mut().cast();
    // SAFETY: the job lives until the call returns, by when all is done.
    ffi::check("parallel", unsafe { ffi::tm_parallel(name.as_ptr(), n, context, call::<W>) })?;
    match job.failed.into_inner() {
        true => Err(Error::Torch(format!("{} panicked", name.to_string_lossy()))),
        false => Ok(()),
    }
}

struct Job<W> {
    work: W,
    failed: AtomicBool,
}

extern "C" fn call<W: Fn(Range<usize>) + Sync>(context: *mut c_void, begin: usize, end: usize) {
    // SAFETY: it is what `parallel` gave, which waits for this.
    let job = unsafe { &*context.cast::<Job<W>>() };
    if catch_unwind(AssertUnwindSafe(|| (job.work)(begin..end))).is_err() {
        job.failed.store(true, Ordering::Relaxed);
    }
}

/// A slice in parts, of which each thread writes its own.
pub struct Parts<'a, T> {
    start: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: `get` leaves it to its caller that no two threads have the same part.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Parts of this slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// Parts of this much memory.
    ///
    /// # Safety
    /// It has to have that many elements for as long as the parts live.
    pub unsafe fn at(start: *mut T, length: usize) -> Self {
        Self { start, length, slice: PhantomData }
    }

    /// A part.
    ///
    /// # Safety
    /// Nobody may have any of it at the same time.
    #[expect(clippy::mut_from_ref, reason = "that is what it is for")]
    pub unsafe fn get(&self, part: Range<usize>) -> &mut [T] {
        assert!(part.start <= part.end && part.end <= self.length, "{part:?} of {}", self.length);
        // SAFETY: it lies in the slice, and is the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(part.start), part.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once() {
        for n in [0, 1, 2, 7, 1000] {
            let mut calls = vec![0u32; 2 * n];
            let parts = Parts::new(&mut calls);
            // SAFETY: each number is in one range.
            let call = |i: usize| unsafe { parts.get(2 * i..2 * i + 2) }[1] += 1;
            parallel(c"test", n, |range| range.for_each(call)).unwrap();
            assert!(calls.chunks(2).all(|call| call == [0, 1]));
        }
        let error = parallel(c"test::bad", 10, |range| assert!(!range.contains(&7))).unwrap_err().to_string();
        assert_eq!(error, "test::bad panicked");
    }
}
