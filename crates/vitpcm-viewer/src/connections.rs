//! Connections: as many at a time as allowed, each with its time limits; all of them brought to an end when the server stops.

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

/// Longest life of a connection. Browsers open another; one that does not read its answer cannot hold a place for ever.
const CONNECTION_TIME: Duration = Duration::from_secs(900);

/// How long requests in progress may go on once the server is to stop.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// A pause after a connection could not be accepted: the system may be out of file handles for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a request's head, about (beyond it: 431), and of what a connection holds to be written.
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
        // Answers are written in large pieces.
        let _ = stream.set_nodelay(true);
        let socket = Socket::new(TokioIo::new(stream), limits.write_time);
        let connection = http.serve_connection(socket, TowerToHyperService::new(router.clone()));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // Clients that break off are their own affair.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FAREWELL_TIME, connections.shutdown()).await;
}
