//! The server's limits on sizes, numbers and times. docs/reference/http-api.md says what memory they add up to.

use std::time::Duration;

/// Bounds on what clients can request. The defaults suit one person on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest upload, in bytes. Beyond it: 413.
    pub max_upload_bytes: usize,
    /// Most pixels per image. Beyond it: 422, before decoding.
    pub max_pixels: u64,
    /// Images stored; the least recently used makes room for a new one.
    pub max_images: usize,
    /// Bytes of all stored images with their scores. A single image beyond it: 422.
    pub max_kept_bytes: usize,
    /// Bytes of all requests being received and responses being sent; one download may use half. Beyond it: 503 with
    /// `Retry-After`.
    pub max_transit_bytes: usize,
    /// Length of the upload queue, including the upload in progress. Beyond it: 503 with `Retry-After`.
    pub max_uploads: usize,
    /// Length of the queue for masks and downloads, including those in progress. Beyond it: 503.
    pub max_mask_requests: usize,
    /// Open connections; further ones wait to be accepted.
    pub max_connections: usize,
    /// Images per download.
    pub max_export_images: usize,
    /// Time to send a request's head, and idle time of a kept-alive connection.
    pub head_time: Duration,
    /// Time to send a request's body. Beyond it: 408.
    pub body_time: Duration,
    /// Time to read 64 KiB of a response. Beyond it the connection is closed.
    pub write_time: Duration,
    /// Time a request may wait in a queue. Beyond it: 503.
    pub queue_time: Duration,
}

impl Limits {
    /// Largest upload that fits the budgets.
    pub(crate) fn upload_bytes(&self) -> usize {
        self.max_upload_bytes.min(self.max_transit_bytes)
    }

    /// Most pixels per image that fit the budgets: its colours and a mask take four bytes per pixel.
    pub(crate) fn pixels(&self) -> u64 {
        self.max_pixels.min(self.max_kept_bytes as u64 / 4)
    }

    /// Largest download, in bytes.
    pub(crate) fn download_bytes(&self) -> usize {
        self.max_transit_bytes / 2
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_upload_bytes: 64 << 20,
            max_pixels: 50_000_000,
            max_images: 200,
            max_kept_bytes: 512 << 20,
            max_transit_bytes: 512 << 20,
            max_uploads: 8,
            max_mask_requests: 32,
            max_connections: 128,
            max_export_images: 200,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(30),
            queue_time: Duration::from_secs(60),
        }
    }
}
