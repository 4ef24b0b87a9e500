//! The binary `vitpcm`. Everything is in the library, which `vitpcm-lab` shares.

fn main() -> std::process::ExitCode {
    vitpcm_cli::vitpcm()
}
