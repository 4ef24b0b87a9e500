//! What every command takes, and what it becomes before the command runs.

use crate::outcome::usage;
use crate::output::Messages;
use anyhow::anyhow;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use vitpcm::Device;
use vitpcm_train::Ranks;

/// Options of every command, as typed.
#[derive(clap::Args)]
pub(crate) struct Common {
    /// Where to compute: cpu, cuda, cuda:N or metal [default: the best that this build and machine have]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Common options")]
    device: Option<String>,
    /// Number of threads [default: all cores]
    #[arg(long, global = true, value_name = "N", help_heading = "Common options")]
    threads: Option<NonZeroUsize>,
    /// Seed of everything random
    #[arg(long, global = true, value_name = "N", default_value_t = 0, help_heading = "Common options")]
    seed: u64,
    /// Messages and progress off; results and errors stay
    #[arg(long, global = true, help_heading = "Common options")]
    quiet: bool,
    /// A TOML file with any of this command's options (`crf = true`, `size = 960`); what is typed wins
    #[arg(long, global = true, value_name = "FILE.toml", help_heading = "Common options")]
    config: Option<PathBuf>,
}

/// Options of every command, resolved.
pub(crate) struct Session<'a> {
    pub(crate) device: Device,
    pub(crate) seed: u64,
    pub(crate) messages: Messages,
    /// The processes that do the work together.
    pub(crate) ranks: &'a Ranks,
}

impl<'a> Session<'a> {
    pub(crate) fn new(common: &Common, ranks: &'a Ranks) -> anyhow::Result<Self> {
        if let Some(threads) = common.threads {
            rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global()?;
        }
        // The file itself was read before the options were parsed.
        let _ = &common.config;
        Ok(Session {
            device: device(common.device.as_deref()).map_err(usage)?,
            seed: common.seed,
            messages: match (ranks.is_first(), common.quiet) {
                (true, false) => Messages::All,
                _ => Messages::Failures,
            },
            ranks,
        })
    }

    /// For what every rank comes upon alike: said by the first one.
    pub(crate) fn common_messages(&self) -> &Messages {
        if self.ranks.is_first() { &self.messages } else { &Messages::None }
    }
}

fn device(name: Option<&str>) -> anyhow::Result<Device> {
    match name.map(|name| name.split(':').next().unwrap_or(name)) {
        None | Some("cpu") => Ok(Device::Cpu),
        Some("cuda" | "metal") => {
            let name = name.unwrap_or_default();
            Err(anyhow!("--device {name}: this build computes on the CPU only"))
        }
        Some(other) => Err(anyhow!("--device {other}: expected cpu, cuda, cuda:N or metal")),
    }
}
