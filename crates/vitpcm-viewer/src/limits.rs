//! What the server takes on: how large, how many, how long. What they bound memory to is in docs/reference/http-api.md.

use std::time::Duration;

/// Bounds on what clients can ask for. The defaults suit one person at one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest upload, in bytes. Beyond it: 413.
    pub max_upload_bytes: usize,
    /// Most pixels of an image. Beyond it: 422, before anything is decoded.
    pub max_pixels: u64,
    /// Images kept; the one not used for longest makes room for a new one.
    pub max_images: usize,
    /// Bytes of all images kept, with their scores. An image that needs more alone: 422.
    pub max_kept_bytes: usize,
    /// Bytes of all requests being received and all answers being sent; half of them for one download. Beyond it: 503 with
    /// `Retry-After`.
    pub max_transit_bytes: usize,
    /// Uploads that wait for the network, the one it works on included. Beyond it: 503 with `Retry-After`.
    pub max_uploads: usize,
    /// Requests that wait for a mask or a download, those being made included. Beyond it: 503.
    pub max_mask_requests: usize,
    /// Open connections; further ones wait to be accepted.
    pub max_connections: usize,
    /// Images in one download.
    pub max_export_images: usize,
    /// Time a client may take to send a request's head, and a kept-alive connection may stay silent.
    pub head_time: Duration,
    /// Time a client may take to send a request's body. Beyond it: 408.
    pub body_time: Duration,
    /// Time a client may take to read 64 KiB of an answer. Beyond it the connection is closed.
    pub write_time: Duration,
    /// Time a request may wait for its turn. Beyond it: 503.
    pub queue_time: Duration,
}

impl Limits {
    /// Largest upload that there is room for.
    pub(crate) fn upload_bytes(&self) -> usize {
        self.max_upload_bytes.min(self.max_transit_bytes)
    }

    /// Most pixels of an image that there is room for: its colours and a mask take four bytes a pixel.
    pub(crate) fn pixels(&self) -> u64 {
        self.max_pixels.min(self.max_kept_bytes as u64 / 4)
    }

    /// Most bytes of one download.
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
