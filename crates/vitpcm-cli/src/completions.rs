//! `vitpcm completions SHELL`: prints a completion script.

use crate::outcome::Outcome;
use crate::session::Session;
use clap::Command;
use clap_complete::Shell;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (bash; then open a new shell):\n  \
    mkdir -p ~/.local/share/bash-completion/completions\n  \
    vitpcm completions bash > ~/.local/share/bash-completion/completions/vitpcm\n\n\
    Other shells:\n  \
    vitpcm completions zsh > ~/.zfunc/_vitpcm     (and fpath+=~/.zfunc in ~/.zshrc)\n  \
    vitpcm completions fish > ~/.config/fish/completions/vitpcm.fish\n  \
    vitpcm completions elvish >> ~/.config/elvish/rc.elv\n  \
    vitpcm completions powershell >> $PROFILE")]
pub(crate) struct Args {
    /// Shell to write the script for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn completions(args: &Args, mut command: Command, session: &Session) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "vitpcm", &mut script);
    session.messages.result(&String::from_utf8(script)?)?;
    Ok(Outcome::Done)
}
