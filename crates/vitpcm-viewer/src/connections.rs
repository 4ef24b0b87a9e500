//! Accepts connections up to a limit, each with its timeouts, and closes all of them when the server stops.

use crate::limits::Limits;
use crate::socket::Socket;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// Longest life of a connection, so that a client that never reads its response cannot hold a slot. Browsers reconnect.
const CONNECTION_TIME: Duration = Duration::from_secs(900);

/// Grace period for requests in progress when the server stops.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// Pause after a failed accept, e.g. when the system is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Approximate limit of a request's head (beyond it: 431), and of a connection's write buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// Accepts connections until told to stop.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &Limits,
    mut stop: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_time).max_buf_size(BUFFER_BYTES);
    let places = Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS)));
    let connections = GracefulShutdown::new();
    let next = async || {
        let place = places.clone().acquire_owned().await.expect("the places are never closed");
        (place, listener.accept().await)
    };
    loop {
        let (place, accepted) = tokio::select! {
            next = next() => next,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Responses are written in large pieces.
        let _ = stream.set_nodelay(true);
        let socket = Socket::new(TokioIo::new(stream), limits.write_time);
        let connection = http.serve_connection(socket, TowerToHyperService::new(router.clone()));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // A client that disconnects is no error.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FAREWELL_TIME, connections.shutdown()).await;
}
