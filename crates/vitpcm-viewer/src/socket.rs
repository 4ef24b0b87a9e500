//! A client's socket as the HTTP library sees it. It times out clients that do not read their responses, adds a JSON
//! body to the library's own errors (not HTTP, head too large), and lets a client finish sending before it closes, so
//! that the response is not lost.

use crate::answer::{JSON, Refusal};
use crate::guard;
use crate::memory::PIECE;
use axum::http::StatusCode;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// How long a client may continue to send after its last response.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// Longest head of the library's own error responses: a status and three short headers.
const MAX_BARE_HEAD: usize = 256;

pub(crate) struct Socket<S> {
    stream: S,
    write_time: Duration,
    /// Deadline for the next piece of a response; set while the client reads nothing.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes written since the deadline was set.
    num_written: usize,
    /// Replacement for an error response without a body, and how much of it is sent.
    refusal: Option<(Vec<u8>, usize)>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S: Read + Write + Unpin> Socket<S> {
    /// `write_time`: how long a client may take to read one piece of a response.
    pub(crate) fn new(stream: S, write_time: Duration) -> Socket<S> {
        Socket { stream, write_time, deadline: None, num_written: 0, refusal: None, linger: None }
    }

    fn poll_write_in_time(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, bytes) {
            self.num_written += written.as_ref().copied().unwrap_or(0);
            if self.num_written >= PIECE {
                self.start_anew();
            }
            return Poll::Ready(written);
        }
        let write_time = self.write_time;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(write_time)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn start_anew(&mut self) {
        (self.deadline, self.num_written) = (None, 0);
    }
}

impl<S: Read + Write + Unpin> Read for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl<S: Read + Write + Unpin> Write for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match bare_refusal(bytes) {
            None => self.poll_write_in_time(context, bytes),
            // The end of an earlier response goes first.
            Some((start, _)) if start > 0 => self.poll_write_in_time(context, &bytes[..start]),
            Some((_, status)) => {
                let (full, mut sent) = self.refusal.take().unwrap_or_else(|| (with_body(bytes, status), 0));
                while sent < full.len() {
                    match self.poll_write_in_time(context, &full[sent..]) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        Poll::Ready(Ok(num_bytes)) => sent += num_bytes,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => {
                            self.refusal = Some((full, sent));
                            return Poll::Pending;
                        }
                    }
                }
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    /// All bytes are with the operating system.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.start_anew();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Closing a socket with unread bytes would make the system discard the response as well.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        let mut discarded = [0; 4096];
        loop {
            let mut room = ReadBuf::new(&mut discarded);
            match Pin::new(&mut self.stream).poll_read(context, room.unfilled()) {
                Poll::Ready(Ok(())) if !room.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER_TIME)));
        linger.as_mut().poll(context).map(Ok)
    }
}

/// Where an error response of the library's own starts, if the bytes end with one, and its status. Our own responses
/// never match: they have bodies, and none ends with an empty line.
fn bare_refusal(bytes: &[u8]) -> Option<(usize, StatusCode)> {
    const START: &[u8] = b"HTTP/1.1 4";
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let earliest = bytes.len().saturating_sub(MAX_BARE_HEAD);
    let start = bytes[earliest..].windows(START.len()).rposition(|window| window == START)? + earliest;
    let head = std::str::from_utf8(&bytes[start..]).ok()?;
    let has_no_body = head.contains("\r\ncontent-length: 0\r\n") && !head.contains("\r\ncontent-type");
    let status = StatusCode::from_bytes(head.get(9..12)?.as_bytes()).ok()?;
    has_no_body.then_some((start, status))
}

fn with_body(head: &[u8], status: StatusCode) -> Vec<u8> {
    let message = match status {
        StatusCode::URI_TOO_LONG => "the address is too long",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "the headers of the request are too large",
        _ => "the request is not valid HTTP/1.1",
    };
    let body = Refusal::new(status, message).json();
    let mut headers = format!("content-length: {}\r\ncontent-type: {JSON}\r\n", body.len());
    for (name, value) in guard::HEADERS {
        headers += &format!("{name}: {value}\r\n");
    }
    headers += "cache-control: no-store\r\n";
    let head = String::from_utf8_lossy(head).replace("content-length: 0\r\n", &headers);
    [head.into_bytes(), body].concat()
}
