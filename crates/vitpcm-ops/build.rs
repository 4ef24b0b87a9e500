//! Compiles the CUDA kernels to PTX with nvcc where the feature `cuda` is on; the driver turns PTX into machine code
//! when a kernel is first used, so one build serves every GPU from compute capability 8.0 on.

use std::path::{Path, PathBuf};
use std::process::Command;

const KERNELS: [&str; 14] = [
    "attention", "column_sums", "conv", "cross_entropy", "depthwise", "elementwise", "flash_attention",
    "flash_attention_backward", "layer_norm", "lstm", "max_pool", "neighbour_sums", "pooling", "softmax",
];

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    for name in ["NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let nvcc = nvcc();
    for kernel in KERNELS {
        let source = Path::new("cuda").join(kernel).with_extension("cu");
        let mut command = Command::new(&nvcc);
        command.args(["-ptx", "-O3", "-arch=compute_80", "-o"]);
        command.arg(out.join(kernel).with_extension("ptx")).arg(&source);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{} {} failed: {status}", nvcc.display(), source.display()),
            Err(error) => panic!(
                "the feature `cuda` needs nvcc of the CUDA toolkit: {}: {error}; set CUDA_HOME or NVCC",
                nvcc.display()
            ),
        }
    }
    println!("cargo::rustc-env=VITPCM_CUDA_MAJOR={}", major_version(&nvcc));
}

/// Of the toolkit, which its libraries have in their names: 13 of `Cuda compilation tools, release 13.0, V13.0.88`.
fn major_version(nvcc: &Path) -> String {
    let said = Command::new(nvcc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let major =
        said.split_once("release ").and_then(|(_, version)| version.split_once('.')).map(|(major, _)| major);
    major
        .unwrap_or_else(|| panic!("{} --version says `{said}`; expected a release", nvcc.display()))
        .to_owned()
}

fn nvcc() -> PathBuf {
    let in_toolkit = |home: std::ffi::OsString| Path::new(&home).join("bin/nvcc");
    std::env::var_os("NVCC")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("CUDA_HOME").map(in_toolkit))
        .or_else(|| std::env::var_os("CUDA_PATH").map(in_toolkit))
        .unwrap_or_else(|| PathBuf::from("nvcc"))
}
