//! The binary `vitpcm`; everything it does is in the library beside it, which `vitpcm-lab` shares.

fn main() -> std::process::ExitCode {
    vitpcm_cli::vitpcm()
}
