//! The viewer: a web page, all of it in the binary, on which people drop images, choose tags and see masks change; and the
//! JSON API under it (`assets/openapi.json`, docs/reference/http-api.md). The only crate that knows HTTP.
//!
//! The network runs once an image, when it comes in ([`vitpcm::Segmenter::score`]); every mask after that is made of the kept
//! scores. What a client sends stays in memory, within [`Limits`]; no path or name of a request ever reaches the disk.
//! What is printed around it is the caller's.
#![forbid(unsafe_code)]

mod answer;
mod assets;
mod bundle;
mod connections;
mod conversation;
mod download;
mod gallery;
mod guard;
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
