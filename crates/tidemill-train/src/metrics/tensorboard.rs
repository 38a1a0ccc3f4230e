//! TensorBoard's event file: length-prefixed, checksummed records, each an `Event` protocol buffer.
//! The few fields used here are encoded by hand, because the crates that do it bring all of
//! TensorFlow's definitions. Sources: tensorflow/core/lib/io/record_writer.h,
//! tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Error;
use crate::metrics::append_only_file::AppendOnlyFile;

/// An event file that is being written.
#[derive(Debug)]
pub struct EventWriter(AppendOnlyFile);

impl EventWriter {
    /// Creates a new event file in `dir`. A resumed run adds a file; TensorBoard shows them as one.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let name = format!("events.out.tfevents.{:.6}.{}.tidemill", unix_time(), std::process::id());
        let mut writer = Self(AppendOnlyFile::open(&dir.join(name))?);
        let mut event = Message::default();
        event.double(1, unix_time());
        event.bytes(3, b"brain.Event:2");
        writer.write_record(&event.0)?;
        Ok(writer)
    }

    /// Writes scalars under their tags.
    ///
    /// # Errors
    /// If the file cannot be written. The event is kept, and written with the next.
    pub fn write_scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<(), Error> {
        let mut summary = Message::default();
        for (tag, value) in scalars {
            let mut entry = Message::default();
            entry.bytes(1, tag.as_bytes());
            entry.float(2, *value as f32);
            summary.bytes(1, &entry.0);
        }
        self.write_event(step, &summary)
    }

    /// Writes an image, encoded as a PNG of `width` x `height` pixels.
    ///
    /// # Errors
    /// If the file cannot be written. The event is kept, and written with the next.
    pub fn write_image(
        &mut self,
        step: u64,
        tag: &str,
        png: &[u8],
        width: u32,
        height: u32,
    ) -> Result<(), Error> {
        let mut image = Message::default();
        image.varint(1, u64::from(height));
        image.varint(2, u64::from(width));
        image.varint(3, 3);
        image.bytes(4, png);
        let mut entry = Message::default();
        entry.bytes(1, tag.as_bytes());
        entry.bytes(4, &image.0);
        let mut summary = Message::default();
        summary.bytes(1, &entry.0);
        self.write_event(step, &summary)
    }

    /// Tries again to write events that could not be written before.
    ///
    /// # Errors
    /// If they still cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.0.append(&[])
    }

    fn write_event(&mut self, step: u64, summary: &Message) -> Result<(), Error> {
        let mut event = Message::default();
        event.double(1, unix_time());
        event.varint(2, step);
        event.bytes(5, &summary.0);
        self.write_record(&event.0)
    }

    fn write_record(&mut self, data: &[u8]) -> Result<(), Error> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(data.len() + 16);
        record.extend(length);
        record.extend(masked_crc(&length).to_le_bytes());
        record.extend(data);
        record.extend(masked_crc(data).to_le_bytes());
        self.0.append(&record)
    }
}

/// Seconds since 1970.
fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// TensorFlow's masked CRC-32C (tensorflow/core/lib/hash/crc32c.h).
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protocol buffer under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.raw_varint(field << 3);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.raw_varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.raw_varint(field << 3 | 2);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.raw_varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }
}
