//! `vitpcm man --out DIR`: writes manual pages for the program and each command.

use crate::outcome::Outcome;
use crate::output;
use crate::session::Session;
use anyhow::Context;
use clap::Command;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (then: man vitpcm-segment):\n  \
    vitpcm man --out ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Folder for the pages: vitpcm.1, vitpcm-segment.1, …
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn man(args: &Args, mut command: Command, session: &Session) -> anyhow::Result<Outcome> {
    // Fills in the commands' full names and the common options.
    command.build();
    let mut contents = Vec::new();
    let mut pages = vec![command];
    while let Some(command) = pages.pop() {
        // clap's `help` command adds nothing to the pages.
        let shown = command.get_subcommands().filter(|command| command.get_name() != "help");
        pages.extend(shown.cloned());
        let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).with_context(|| name.clone())?;
        contents.push((args.out.join(format!("{name}.1")), page));
    }
    session.check_outputs([""; 0], contents.iter().map(|(path, _)| path.clone()))?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}", args.out.display()))?;
    for (path, page) in &contents {
        output::write_file(path, page)?;
    }
    let num_pages = contents.len();
    session.messages.note(format!("{num_pages} manual pages are in {}", args.out.display()));
    Ok(Outcome::Done)
}
