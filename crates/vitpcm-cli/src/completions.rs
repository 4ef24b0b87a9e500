//! `vitpcm completions SHELL`: a script for the shell, on stdout.

use crate::outcome::Outcome;
use crate::output;
use clap::Command;
use clap_complete::Shell;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    mkdir -p ~/.local/share/bash-completion/completions\n  \
    vitpcm completions bash > ~/.local/share/bash-completion/completions/vitpcm\n\n\
    zsh, fish, elvish and PowerShell: docs/install-completions in docs/exports.md")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn completions(args: &Args, mut command: Command) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "vitpcm", &mut script);
    output::result(&String::from_utf8(script)?)?;
    Ok(Outcome::Done)
}
