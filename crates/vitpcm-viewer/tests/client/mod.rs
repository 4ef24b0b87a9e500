//! A server with a tiny model, and a plain HTTP client over sockets: requests are written byte by byte, so that they can be
//! wrong.

use image::{ImageFormat, RgbImage};
use std::io::{Cursor, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;
use vitpcm::{Device, Segmenter, SegmenterOptions, random_model};
use vitpcm_viewer::{Limits, Server, ServerError, Stopper};

/// A segmenter that knows dogs and people by chance.
pub(crate) fn segmenter() -> Segmenter {
    let model = random_model("vit-nano16", &["dog", "person"], 1).unwrap();
    let options = SegmenterOptions { size: Some(64), ..SegmenterOptions::default() };
    Segmenter::new(&model, &Device::Cpu, options).unwrap()
}

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stopper: Stopper,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl TestServer {
    pub(crate) fn start(segmenter: Segmenter, limits: Limits) -> TestServer {
        let server = Server::bind("127.0.0.1", 0, segmenter, "a model", limits).unwrap();
        let (address, stopper) = (server.address(), server.stopper());
        TestServer { address, stopper, thread: std::thread::spawn(move || server.run()) }
    }

    /// Stops it; it must not have died before.
    pub(crate) fn stop(self) {
        assert!(!self.thread.is_finished(), "the server ended by itself");
        self.stopper.stop();
        self.thread.join().unwrap().unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n", self.address), b"")
    }

    pub(crate) fn post(&self, path: &str, content_type: &str, body: &[u8]) -> Response {
        let host = self.address;
        self.send(&format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\n"), body)
    }

    pub(crate) fn post_json(&self, path: &str, body: &serde_json::Value) -> Response {
        self.post(path, "application/json", body.to_string().as_bytes())
    }

    pub(crate) fn upload(&self, name: &str, file: &[u8]) -> Response {
        self.post(&format!("/api/images?name={}", percent_encoded(name)), "image/png", file)
    }

    pub(crate) fn send(&self, head: &str, body: &[u8]) -> Response {
        let mut stream = self.connect();
        let end = format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(end.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        read_response(stream).expect("an answer")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
}

pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Reads an answer to the end of the connection; nothing if it was closed without one.
pub(crate) fn read_response(mut stream: TcpStream) -> Option<Response> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1)?.parse().unwrap();
    Some(Response { status, head, body: bytes[end + 4..].to_vec() })
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A picture that differs by its number.
pub(crate) fn picture(number: u32) -> RgbImage {
    RgbImage::from_fn(60 + number, 40, |x, y| {
        image::Rgb([(x * 4) as u8, (y * 6) as u8, (number * 37 + x * y) as u8])
    })
}

pub(crate) fn encoded(picture: &RgbImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A PNG whose header promises far more than the file holds.
pub(crate) fn png_of_size(width: u32, height: u32) -> Vec<u8> {
    let mut png = encoded(&RgbImage::new(1, 1), ImageFormat::Png);
    png[16..20].copy_from_slice(&width.to_be_bytes());
    png[20..24].copy_from_slice(&height.to_be_bytes());
    let mut crc = u32::MAX;
    for &byte in &png[12..29] {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    png[29..33].copy_from_slice(&(!crc).to_be_bytes());
    png
}
