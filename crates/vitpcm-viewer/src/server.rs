//! The server's public interface: [`Server::bind`] prepares it, [`Server::run`] runs it until it is stopped.

use crate::connections;
use crate::conversation::Conversation;
use crate::gallery::Gallery;
use crate::limits::Limits;
use crate::memory::Budget;
use crate::routes::{App, router};
use crate::work_queue::WorkQueue;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::watch;
use vitpcm::Segmenter;

/// Threads for masks, next to the network's.
const MASK_THREADS: usize = 4;

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another program listens on the port.
    #[error(
        "port {port} is taken, perhaps by another `vitpcm serve`; choose another with --port, or --port 0 for any"
    )]
    PortTaken {
        /// The requested port.
        port: u16,
    },
    /// The server cannot listen on the address.
    #[error("{host}, port {port}: {source}")]
    Address {
        /// The requested host.
        host: String,
        /// The requested port.
        port: u16,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system refused threads, timers or similar.
    #[error("starting the server: {0}")]
    Start(String),
}

/// A server that is already listening.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    own_name: Option<String>,
    stop: watch::Sender<bool>,
}

/// Stops a [`Server`] from another thread.
#[derive(Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Finishes requests in progress, accepts no more, and makes [`Server::run`] return.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens on a host and port; port 0 takes any free one. `model_name` is the model's name on the page.
    pub fn bind(
        host: &str,
        port: u16,
        segmenter: Segmenter,
        model_name: &str,
        limits: Limits,
    ) -> Result<Server, ServerError> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServerError::PortTaken { port },
            _ => ServerError::Address { host: host.to_owned(), port, source },
        };
        let listener = TcpListener::bind((host, port)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let threads = rayon::current_num_threads().min(MASK_THREADS);
        let mask_threads = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let app = App {
            segmenter,
            model_name: model_name.to_owned(),
            gallery: Gallery::new(limits.max_images, limits.max_kept_bytes),
            transit: Budget::new(limits.max_transit_bytes),
            uploads: WorkQueue::new(limits.max_uploads, 1, limits.queue_time),
            masks: WorkQueue::new(limits.max_mask_requests, 1, limits.queue_time),
            mask_threads: mask_threads.map_err(|error| ServerError::Start(error.to_string()))?,
            limits,
        };
        let own_name = host.parse::<IpAddr>().is_err().then(|| host.to_owned());
        Ok(Server { listener, address, app: Arc::new(app), own_name, stop: watch::Sender::new(false) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL to open in a browser on this machine.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        match (&self.own_name, ip.is_unspecified(), ip) {
            (Some(name), _, _) => format!("http://{name}:{}/", self.address.port()),
            (None, true, _) => format!("http://localhost:{}/", self.address.port()),
            (None, false, IpAddr::V4(_)) => format!("http://{}/", self.address),
            (None, false, IpAddr::V6(ip)) => format!("http://[{ip}]:{}/", self.address.port()),
        }
    }

    /// A handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// The same server without a socket: see [`Conversation`].
    pub fn into_conversation(self) -> Result<Conversation, ServerError> {
        let router = router(self.app, Arc::new(self.own_name));
        Conversation::new(router).map_err(|error| ServerError::Start(error.to_string()))
    }

    /// Serves requests until it is stopped.
    pub fn run(self) -> Result<(), ServerError> {
        let start = |error: std::io::Error| ServerError::Start(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(start)?;
        let limits = self.app.limits.clone();
        let router = router(self.app, Arc::new(self.own_name));
        let ended = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            connections::serve(listener, router, &limits, self.stop.subscribe()).await;
            Ok(())
        });
        // Does not wait for computations whose clients are gone.
        runtime.shutdown_background();
        ended.map_err(start)
    }
}
