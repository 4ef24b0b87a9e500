//! Configuration files: of training, of verification, and of any command (`--config`).

// The command line is a program, not a library; its configuration reader is self-contained and compiled in here.
#[path = "../../../vitpcm-cli/src/config_file.rs"]
mod config_file;

use super::{MEMORY, Target, said};
use clap::{Arg, ArgAction, Command};
use vitpcm_train::{Preset, Settings, TrainConfig, VerifyConfig};

const TOML_WORDS: &[&str] = &[
    "[", "]", "[[", "]]", "=", "\"\"\"", "'''", "#", "\n", "inf", "nan", "-1", "1e400", "0x",
    "1979-05-27T07:32:00Z", "{", "}", "true", "[schedule]", "[views]", "[loss]", "[model]", "[validation]",
    "epochs = ", "batch = ", "seed = ", "18446744073709551616",
];

pub(super) const TRAIN_CONFIG: Target = Target {
    name: "train-config",
    what: "config.toml of training",
    dictionary: TOML_WORDS,
    seeds: || {
        let presets = [Preset::Official, Preset::Paper, Preset::Default, Preset::Demo];
        let text = |preset| TrainConfig::preset(preset).to_toml().expect("a preset is plain data");
        presets.map(|preset| text(preset).into_bytes()).into()
    },
    subject: |_| {
        Box::new(|bytes| {
            let config = TrainConfig::from_toml(&String::from_utf8_lossy(bytes));
            if let Ok(config) = &config {
                // Accepted settings must survive a round trip.
                let text = config.to_toml().expect("what was read can be written");
                let again = TrainConfig::from_toml(&text).expect("what was written can be read");
                assert_eq!(again.to_toml().expect("what was read can be written"), text);
            }
            said(config)
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const VERIFY_CONFIG: Target = Target {
    name: "verify-config",
    what: "config.toml of verification",
    dictionary: TOML_WORDS,
    seeds: || vec![VerifyConfig::default().to_toml().expect("the default is plain data").into_bytes()],
    subject: |_| Box::new(|bytes| said(VerifyConfig::from_toml(&String::from_utf8_lossy(bytes)))),
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const CLI_CONFIG: Target = Target {
    name: "cli-config",
    what: "--config of any command",
    dictionary: TOML_WORDS,
    seeds: || vec![b"size = 64\nscales = [1.0, 1.5]\nflip = true\nout = \"masks\"\ncrf_steps = 3\n".to_vec()],
    subject: |scratch| {
        let path = scratch.join("file.toml");
        let option = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        let flag = Arg::new("flip").long("flip").action(ArgAction::SetTrue);
        let segment =
            Command::new("segment").args(["size", "scales", "out", "crf-steps"].map(option)).arg(flag);
        let cli = Command::new("vitpcm").arg(option("config").global(true)).subcommand(segment);
        Box::new(move |bytes| {
            std::fs::write(&path, bytes).expect("the scratch folder takes files");
            let typed = ["vitpcm".into(), "segment".into(), "--config".into(), path.clone().into_os_string()];
            match config_file::expanded_arguments(&cli, typed.to_vec()) {
                Ok(arguments) => said(cli.clone().try_get_matches_from(arguments)),
                Err(error) => error.root_cause().to_string(),
            }
        })
    },
    repair: None,
    max_bytes: MEMORY,
};
