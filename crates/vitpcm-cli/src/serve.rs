//! `vitpcm serve`: the viewer, in a browser. Opens the model and says where to look; all else is `vitpcm-viewer`.

use crate::allocator;
use crate::interrupt;
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::session::Session;
use std::path::PathBuf;
use vitpcm::{Segmenter, SegmenterOptions, embedded_model};
use vitpcm_viewer::{Limits, Server};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    vitpcm serve\n  \
    vitpcm serve --port 0 --model runs/mine/model.safetensors\n\n\
    Ctrl-C ends it. Images stay in memory and are gone then; docs/viewer.md describes the page and its API.")]
pub(crate) struct Args {
    /// Port to listen on; 0 takes any that is free
    #[arg(long, value_name = "N", value_parser = number_bounds::port, default_value_t = 7878)]
    port: u16,
    /// The model, as `train` writes it [default: the embedded one, which knows the 20 classes of PASCAL VOC]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Address to listen on; anything but loopback lets others on the network in, without a password
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Side in pixels to which images are resized for the network [default: the model's own]
    #[arg(long, value_name = "N", value_parser = number_bounds::network_side)]
    size: Option<usize>,
    /// The largest image that is taken, in megapixels
    #[arg(long, value_name = "N", value_parser = number_bounds::megapixels, default_value_t = 50)]
    max_megapixels: u64,
    /// The largest file that is taken, in MiB
    #[arg(long, value_name = "N", value_parser = number_bounds::mebibytes, default_value_t = 64)]
    max_upload: usize,
    /// Images that are kept at a time; the one not used for longest makes room
    #[arg(long, value_name = "N", value_parser = number_bounds::places, default_value_t = 200)]
    max_images: usize,
    /// Memory for the images that are kept, in MiB
    #[arg(long, value_name = "N", value_parser = number_bounds::mebibytes, default_value_t = 1024)]
    max_memory: usize,
    /// Open connections at a time; further ones wait
    #[arg(long, value_name = "N", value_parser = number_bounds::places, default_value_t = Limits::default().max_connections)]
    max_connections: usize,
    /// Images that wait for the network at a time, the one it works on included; further ones are told to come again
    #[arg(long, value_name = "N", value_parser = number_bounds::places, default_value_t = Limits::default().max_uploads)]
    max_waiting: usize,
}

pub(crate) fn serve(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    allocator::use_few_heaps();
    let (device, precision) = session.open_device()?;
    let options = SegmenterOptions { size: args.size, precision, ..SegmenterOptions::default() };
    let (segmenter, model_name) = match &args.model {
        Some(model) => (Segmenter::open(model, &device, options), model.file_name().unwrap_or_default()),
        None => (Segmenter::new(&embedded_model(&device)?, &device, options), "embedded model".as_ref()),
    };
    let limits = Limits {
        max_upload_bytes: args.max_upload.saturating_mul(1 << 20),
        max_pixels: args.max_megapixels.saturating_mul(1_000_000),
        max_images: args.max_images.max(1),
        max_connections: args.max_connections.max(1),
        max_uploads: args.max_waiting.max(1),
        max_kept_bytes: args.max_memory.saturating_mul(1 << 20),
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
    session.messages.note("the viewer is at the address below; Ctrl-C ends it");
    output::result(&format!("{}\n", server.url()))?;
    server.run()?;
    Ok(Outcome::Done)
}
