//! Options of every command, and the session they resolve to.

use crate::file_guard;
use crate::in_process::Program;
use crate::interrupt::{AskedBy, Interrupt};
use crate::invocation::Invocation;
use crate::number_bounds;
use crate::outcome::{Stopped, usage};
use crate::output::Messages;
use anyhow::{anyhow, bail};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use vitpcm::{Device, DeviceName, Precision, suitable_precision, suitable_training_precision};
use vitpcm_data::ImageLimits;
use vitpcm_train::Ranks;

/// Options of every command, as typed.
#[derive(clap::Args)]
pub struct Common {
    /// Where to compute: cpu, cuda, cuda:N or metal [default: the best that this build and machine have]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Common options")]
    device: Option<DeviceName>,
    /// Compute precision: f32, bf16 or int8 [default: bf16 on NVIDIA GPUs, int8 on CPUs with VNNI, where blocks in training are bf16 (AVX-512 BF16) or f32; else f32]
    #[arg(long, global = true, value_name = "NAME", value_parser = precision, help_heading = "Common options")]
    precision: Option<Precision>,
    /// Number of threads [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = number_bounds::thread_count, help_heading = "Common options")]
    threads: Option<usize>,
    /// Random seed
    #[arg(long, global = true, value_name = "N", value_parser = number_bounds::seed, default_value_t = 0, help_heading = "Common options")]
    seed: u64,
    /// No messages or progress; results and errors stay
    #[arg(long, global = true, help_heading = "Common options")]
    quiet: bool,
    /// More about training: the terms of the loss and the learning rate
    #[arg(long, global = true, conflicts_with = "quiet", help_heading = "Common options")]
    verbose: bool,
    /// Largest file loaded into memory, in GiB [default: 1 for lists and settings, 8 for annotations, what weights need]
    #[arg(long, global = true, value_name = "N", value_parser = number_bounds::gigabytes, help_heading = "Common options")]
    max_file_gigabytes: Option<u64>,
    /// Largest image or mask to decode, in megapixels [default: 400; serve: 50]
    #[arg(long, global = true, value_name = "N", value_parser = number_bounds::megapixels, help_heading = "Common options")]
    max_megapixels: Option<u64>,
    /// A TOML file with any of this command's options, e.g. `threads = 2`; typed options win
    #[arg(long, global = true, value_name = "FILE.toml", help_heading = "Common options")]
    config: Option<PathBuf>,
}

/// Options of every command, resolved.
pub struct Session<'a> {
    device: DeviceName,
    precision: Option<Precision>,
    max_pixels: Option<u64>,
    /// Random seed.
    pub seed: u64,
    /// Which messages are printed.
    pub messages: Messages,
    /// The cooperating processes.
    pub(crate) ranks: &'a Ranks,
    pub(crate) invocation: Invocation,
    config: Option<PathBuf>,
    pub(crate) role: Role,
    asked_by: AskedBy,
}

/// How a command is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// By the user.
    Command,
    /// As a stage of another command, which reports the result itself.
    Stage,
}

impl<'a> Session<'a> {
    /// Resolves the typed options.
    pub fn new(common: &Common, invocation: Invocation, ranks: &'a Ranks) -> anyhow::Result<Self> {
        if let Some(threads) = common.threads {
            use_threads(threads)?;
        }
        if let Some(gigabytes) = common.max_file_gigabytes {
            let bytes = gigabytes.saturating_mul(1 << 30);
            vitpcm_masks::text_file::raise_limit(bytes);
            vitpcm_nets::raise_weight_limit(bytes);
        }
        Ok(Session {
            device: common.device.unwrap_or_default(),
            precision: common.precision,
            max_pixels: common.max_megapixels.map(|megapixels| megapixels * 1_000_000),
            seed: common.seed,
            messages: match ranks.is_first() && !common.quiet {
                true if common.verbose => Messages::Verbose,
                true => Messages::All,
                false => Messages::Failures,
            },
            ranks,
            invocation,
            // The file was read before the options were parsed.
            config: common.config.clone(),
            role: Role::Command,
            asked_by: AskedBy::Signals,
        })
    }

    /// The same for a command that another program runs in its process.
    pub(crate) fn in_process(self, program: Program) -> Self {
        let Program { hears, stop } = program;
        Session { messages: Messages::Sent(hears), asked_by: AskedBy::Program(stop), ..self }
    }

    /// A session for a stage of this command.
    pub(crate) fn of_stage(&self, invocation: Invocation) -> Session<'a> {
        let (messages, asked_by) = (self.messages.clone(), self.asked_by.clone());
        Session { invocation, messages, asked_by, role: Role::Stage, config: self.config.clone(), ..*self }
    }

    /// Starts to listen to whoever may ask the command to stop.
    pub fn interrupt(&self) -> Interrupt {
        Interrupt::listen(&self.asked_by)
    }

    /// Fails if the program that runs the command asked it to stop: for work that keeps nothing, which signals end with
    /// the process.
    pub(crate) fn check_stop(&self) -> anyhow::Result<()> {
        match &self.asked_by {
            AskedBy::Program(flag) if flag.load(Ordering::SeqCst) => bail!(Stopped),
            _ => Ok(()),
        }
    }

    /// Limits on images to decode.
    pub fn image_limits(&self) -> ImageLimits {
        let default = ImageLimits::default();
        ImageLimits { max_pixels: self.max_pixels.unwrap_or(default.max_pixels) }
    }

    /// The limit on an image's pixels, if typed.
    pub(crate) fn max_pixels(&self) -> Option<u64> {
        self.max_pixels
    }

    /// For messages common to all ranks: printed by the first one.
    pub(crate) fn common_messages(&self) -> &Messages {
        if self.ranks.is_first() { &self.messages } else { &Messages::None }
    }

    /// Refuses to write a file that is read (one of `inputs` or the `--config` file), and to write into a read-only
    /// folder.
    pub fn check_outputs(
        &self,
        inputs: impl IntoIterator<Item = impl AsRef<Path>>,
        outputs: impl IntoIterator<Item = PathBuf>,
    ) -> anyhow::Result<()> {
        let outputs: Vec<PathBuf> = outputs.into_iter().collect();
        file_guard::check(&self.config, outputs.iter().cloned())?;
        file_guard::check_writable(&outputs)?;
        file_guard::check(inputs, outputs)
    }

    /// Opens the device for inference.
    pub fn open_device(&self) -> anyhow::Result<(Device, Precision)> {
        self.open_device_for(suitable_precision)
    }

    /// Opens the device for training.
    pub fn open_device_to_train(&self) -> anyhow::Result<(Device, Precision)> {
        self.open_device_for(suitable_training_precision)
    }

    fn open_device_for(&self, suitable: fn(&Device) -> Precision) -> anyhow::Result<(Device, Precision)> {
        // One GPU per rank, unless the launcher already hides the others.
        let own = match self.device {
            DeviceName::Best | DeviceName::Cuda(0) => Some(DeviceName::Cuda(self.ranks.local_rank()).open()),
            _ => None,
        };
        let device = match own {
            Some(Ok(gpu)) => gpu,
            Some(Err(error)) if self.device == DeviceName::Best => {
                let device = self.device.open().map_err(usage)?;
                // A build for GPUs that falls back to the CPU says so, rather than running slowly for hours.
                if cfg!(feature = "cuda") && device.is_cpu() {
                    self.messages.note(format_args!("{error}; using the CPU"));
                }
                device
            }
            _ => self.device.open().map_err(usage)?,
        };
        let precision = self.precision.unwrap_or_else(|| suitable(&device));
        if precision == Precision::Bf16 && !(device.is_cuda() || device.is_cpu() && vitpcm::has_fast_bf16()) {
            return Err(usage(anyhow!("--precision bf16 needs an NVIDIA GPU or a CPU with AVX-512 BF16")));
        }
        if precision == Precision::Int8 && !device.is_cpu() {
            return Err(usage(anyhow!("--precision int8 is for the CPU (--device cpu)")));
        }
        Ok((device, precision))
    }
}

/// A process has one pool of threads, which the first command starts.
fn use_threads(count: usize) -> anyhow::Result<()> {
    match rayon::ThreadPoolBuilder::new().num_threads(count).build_global() {
        Err(_) if rayon::current_num_threads() != count => Err(usage(anyhow!(
            "--threads {count}: this process computes with {} threads since its first command",
            rayon::current_num_threads()
        ))),
        _ => Ok(()),
    }
}

fn precision(name: &str) -> Result<Precision, String> {
    match name {
        "f32" => Ok(Precision::F32),
        "bf16" => Ok(Precision::Bf16),
        "int8" => Ok(Precision::Int8),
        _ => Err("expected f32, bf16 or int8".to_owned()),
    }
}
