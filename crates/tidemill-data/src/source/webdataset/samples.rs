//! The samples of a WebDataset archive. Neighbouring members with the same key are one sample, as
//! img2dataset writes them: `<key>.jpg`, `<key>.txt`, `<key>.json`.

use std::collections::HashSet;
use std::io::Read;

use twox_hash::XxHash3_64;

use crate::source::compression::Decompressed;
use crate::source::records::record::Record;
use crate::source::records::sample::{Sample, SampleOptions};
use crate::source::webdataset::members::{ArchiveError, Member, Members};
use crate::source::webdataset::tar::TarMembers;

/// The samples of an archive, in order. An error of one sample is its record's error. An archive
/// that cannot be read to its end gives one more record with that error: in place of the sample in
/// which it ends, or behind the last one.
pub struct Samples<M> {
    members: M,
    options: SampleOptions,
    current: Option<Sample>,
    /// The first member of the sample after `current`.
    next: Option<Member>,
    /// Hashes of the keys so far.
    keys: HashSet<u64>,
    row: u64,
    is_done: bool,
}

impl<R: Read> Samples<TarMembers<Decompressed<R>>> {
    /// Reads samples from the start of a tar, plain or compressed by gzip or zstd.
    pub fn from_tar(reader: R, options: SampleOptions) -> Self {
        Self::new(TarMembers::new(Decompressed::new(reader)), options)
    }
}

impl<M: Members> Samples<M> {
    /// Reads samples from the members of an archive.
    pub fn new(members: M, options: SampleOptions) -> Self {
        Self { members, options, current: None, next: None, keys: HashSet::new(), row: 0, is_done: false }
    }

    /// Reads one member. Returns the previous sample if the member starts another one.
    fn read_member(&mut self) -> Option<Record> {
        let member = match self.next.take() {
            Some(member) => member,
            None => match self.members.next() {
                Ok(Some(member)) => member,
                Ok(None) => {
                    self.is_done = true;
                    return self.finish_sample();
                }
                Err(ArchiveError::Cut(problem) | ArchiveError::Member(problem)) => {
                    // The current sample is complete as far as it was read.
                    self.is_done = true;
                    let last = self.finish_sample();
                    self.current = Some(Sample::with_error(None, problem));
                    return last;
                }
            },
        };
        let (key, extension) = self.options.split_name(&member.name)?;
        if self.current.as_ref().is_some_and(|sample| sample.key.as_deref() != Some(key)) {
            self.next = Some(member);
            return self.finish_sample();
        }
        if self.current.is_none() {
            let is_new = self.keys.insert(XxHash3_64::oneshot(key.as_bytes()));
            let mut sample = Sample::new(key);
            sample.is_repeated = !is_new;
            self.current = Some(sample);
        }
        let sample = self.current.as_mut()?;
        if sample.wants(&self.options, &extension, &member.name, member.size) {
            match self.members.read_data() {
                Ok(bytes) => sample.add(&self.options, &extension, bytes.into()),
                Err(ArchiveError::Member(problem)) => sample.set_error(problem),
                Err(ArchiveError::Cut(problem)) => {
                    self.is_done = true;
                    let key = sample.key.take();
                    self.current = Some(Sample::with_error(key, problem));
                }
            }
        }
        None
    }

    fn finish_sample(&mut self) -> Option<Record> {
        let sample = self.current.take()?;
        self.row += 1;
        Some(sample.into_record(self.row - 1))
    }
}

impl<M: Members> Iterator for Samples<M> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while !self.is_done {
            if let Some(record) = self.read_member() {
                return Some(record);
            }
        }
        self.finish_sample()
    }
}
