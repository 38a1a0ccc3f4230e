//! Runs work on the threads of libtorch's own operations (`at::parallel_for`). A second thread pool
//! would compete with them for the cores.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, ffi};

/// Calls `work` with ranges that together make up `0..n`, one for each thread. Profiles show it as
/// `name`.
///
/// # Errors
/// If `work` panics.
pub fn parallel_for<W: Fn(Range<usize>) + Sync>(name: &'static CStr, n: usize, work: W) -> Result<(), Error> {
    let task = Task { work, panicked: AtomicBool::new(false) };
    let context = std::ptr::from_ref(&task).cast_mut().cast();
    // SAFETY: the task lives until the call returns, and the call returns when all of it is done.
    ffi::check("parallel_for", unsafe { ffi::tm_parallel_for(name.as_ptr(), n, context, run_range::<W>) })?;
    match task.panicked.into_inner() {
        true => Err(Error::Torch(format!("{} panicked", name.to_string_lossy()))),
        false => Ok(()),
    }
}

struct Task<W> {
    work: W,
    panicked: AtomicBool,
}

extern "C" fn run_range<W: Fn(Range<usize>) + Sync>(context: *mut c_void, begin: usize, end: usize) {
    // SAFETY: `context` is the task of `parallel_for`, which waits for this call.
    let task = unsafe { &*context.cast::<Task<W>>() };
    if catch_unwind(AssertUnwindSafe(|| (task.work)(begin..end))).is_err() {
        task.panicked.store(true, Ordering::Relaxed);
    }
}

/// A slice that several threads write to, each to ranges of its own.
pub struct DisjointSlices<'a, T> {
    start: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the caller of `get_mut` promises that no two threads have the same elements.
unsafe impl<T: Send> Sync for DisjointSlices<'_, T> {}

impl<'a, T> DisjointSlices<'a, T> {
    /// Borrows `slice` for the threads.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// Takes memory by its address.
    ///
    /// # Safety
    /// It must hold `length` elements for as long as the result lives.
    pub unsafe fn from_raw(start: *mut T, length: usize) -> Self {
        Self { start, length, slice: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// Nobody else may have any of these elements at the same time.
    #[expect(clippy::mut_from_ref, reason = "several threads write to one slice through a shared reference")]
    pub unsafe fn get_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {}", self.length);
        // SAFETY: the range lies in the slice, and the caller promises that it is theirs alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_comes_once_and_panics_become_errors() {
        for n in [0, 1, 2, 7, 1000] {
            let mut calls = vec![0u32; 2 * n];
            let slices = DisjointSlices::new(&mut calls);
            // SAFETY: each index is in one range.
            let call = |i: usize| unsafe { slices.get_mut(2 * i..2 * i + 2) }[1] += 1;
            parallel_for(c"test", n, |range| range.for_each(call)).unwrap();
            assert!(calls.chunks(2).all(|call| call == [0, 1]));
        }
        let error =
            parallel_for(c"test::bad", 10, |range| assert!(!range.contains(&7))).unwrap_err().to_string();
        assert_eq!(error, "test::bad panicked");
    }
}
