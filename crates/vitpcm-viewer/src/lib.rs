//! The viewer: a web page, embedded in the binary, for dropping images, choosing tags and watching the masks change;
//! and the JSON API below it (`assets/openapi.json`, docs/reference/http-api.md). The only crate that knows HTTP.
//!
//! The network runs once per image, on upload ([`vitpcm::Segmenter::score`]); all masks are made from the stored
//! scores. Uploads stay in memory, within [`Limits`]; no path or name from a request reaches the disk. Printing is left
//! to the caller.
#![forbid(unsafe_code)]

mod answer;
mod assets;
mod bundle;
mod connections;
mod conversation;
mod download;
mod gallery;
mod guard;
mod hints;
mod kept_image;
mod limits;
mod memory;
mod names;
mod object;
mod routes;
mod server;
mod socket;
mod work_queue;

pub use conversation::Conversation;
pub use limits::Limits;
pub use server::{Server, ServerError, Stopper};
