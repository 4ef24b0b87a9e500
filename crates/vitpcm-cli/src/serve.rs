//! `vitpcm serve`: the viewer in a browser. Opens the model and prints the address; the rest is `vitpcm-viewer`.

use crate::allocator;
use crate::embedded_model;
use crate::interrupt;
use crate::model_path;
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::session::Session;
use std::path::PathBuf;
use vitpcm::{Segmenter, SegmenterOptions};
use vitpcm_viewer::{Limits, Server};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    vitpcm serve\n  \
    vitpcm serve --port 0 --model run\n\n\
    Ctrl-C stops it. Images are kept in memory only; docs/guide/viewer.md describes the page and its API.")]
pub(crate) struct Args {
    /// The model, as `train` or `masks` writes it: file or run folder [default: the embedded one, which knows the 20
    /// classes of PASCAL VOC]
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    model: Option<PathBuf>,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", value_parser = number_bounds::port, default_value_t = 7878)]
    port: u16,
    /// Address to listen on; any but loopback admits others on the network, without a password
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Side in pixels to which images are resized for the network [default: the model's own]
    #[arg(long, value_name = "N", value_parser = number_bounds::network_side)]
    size: Option<usize>,
    /// Largest file accepted, in MiB
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number_bounds::mebibytes)]
    max_upload: u64,
    /// Number of images kept; the least recently used one makes room
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = number_bounds::places)]
    max_images: u64,
    /// Memory for images, uploads and responses, in MiB: half for the images kept, half for data in transit
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = number_bounds::memory_budget)]
    max_memory: u64,
    /// Number of open connections; further ones wait
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = number_bounds::places)]
    max_connections: u64,
    /// Upload queue length; beyond it the server answers 503
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number_bounds::places)]
    max_waiting: u64,
}

pub(crate) fn serve(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    allocator::use_few_heaps();
    let (device, precision) = session.open_device()?;
    let options = SegmenterOptions { size: args.size, precision, ..SegmenterOptions::default() };
    let (segmenter, model_name) = match &args.model {
        Some(model) => (Segmenter::open(model, &device, options), model.file_name().unwrap_or_default()),
        None => {
            let model = embedded_model::load(&device, "--model FILE")?;
            (Segmenter::new(&model, &device, options), "embedded model".as_ref())
        }
    };
    // All bounds above fit into 64 bits as bytes.
    let half_of_memory = (args.max_memory << 20) as usize / 2;
    let limits = Limits {
        max_upload_bytes: (args.max_upload << 20) as usize,
        max_pixels: session.max_pixels().unwrap_or(Limits::default().max_pixels),
        max_images: args.max_images as usize,
        max_connections: args.max_connections as usize,
        max_uploads: args.max_waiting as usize,
        max_kept_bytes: half_of_memory,
        max_transit_bytes: half_of_memory,
        ..Limits::default()
    };
    let model_name = model_name.to_string_lossy();
    let server = Server::bind(&args.host, args.port, segmenter.map_err(usage)?, &model_name, limits)?;
    let stopper = server.stopper();
    interrupt::on_first(move || stopper.stop());
    if !server.address().ip().is_loopback() {
        session.messages.note(format!(
            "warning: listening on {}: anyone who can reach this machine can use the viewer",
            server.address()
        ));
    }
    session.messages.note("the viewer is at the address below; Ctrl-C stops it");
    session.messages.result(&format!("{}\n", server.url()))?;
    server.run()?;
    Ok(Outcome::Done)
}
