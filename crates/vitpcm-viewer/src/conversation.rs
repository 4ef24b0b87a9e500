//! One connection without a socket: takes the bytes that a client sends and returns the bytes that it would receive,
//! through the same code as [`connections`](crate::connections). For tests and fuzzing.

use crate::limits::Limits;
use crate::socket::Socket;
use axum::Router;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::runtime::Runtime;

/// The routes of a [`Server`](crate::Server), called directly.
pub struct Conversation {
    runtime: Runtime,
    router: Router,
}

impl Conversation {
    pub(crate) fn new(router: Router) -> io::Result<Conversation> {
        Ok(Conversation {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            router,
        })
    }

    /// The response to a client that sends these bytes and then closes its side. Every request is answered; bytes that
    /// are not HTTP end the connection.
    pub fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let client = Client { unread: bytes.to_vec(), position: 0, answers: answers.clone() };
        let service = TowerToHyperService::new(self.router.clone());
        // The client's side is closed from the start, but it still reads responses.
        let mut http = http1::Builder::new();
        let connection = http
            .half_close(true)
            .serve_connection(Socket::new(client, Limits::default().write_time), service);
        // A client's errors end its connection, as on a socket.
        let _ = self.runtime.block_on(connection);
        std::mem::take(&mut *answers.lock().expect("nothing panics while it is held"))
    }
}

struct Client {
    unread: Vec<u8>,
    position: usize,
    answers: Arc<Mutex<Vec<u8>>>,
}

impl Read for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let end = self.unread.len().min(self.position + room.remaining());
        room.put_slice(&self.unread[self.position..end]);
        self.position = end;
        Poll::Ready(Ok(()))
    }
}

impl Write for Client {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answers.lock().expect("nothing panics while it is held").extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
