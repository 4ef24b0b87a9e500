//! `vitpcm serve` as a user runs it: says where it is, refuses a taken port, ends at Ctrl-C.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

fn vitpcm() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vitpcm"))
}

#[test]
fn serve_says_where_it_is_refuses_a_taken_port_and_ends_at_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.safetensors");
    let made = vitpcm().args(["model", "random", "--backbone", "vit-nano16", "--out"]).arg(&model).status();
    assert!(made.unwrap().success());
    let mut server = vitpcm()
        .args(["serve", "--port", "0", "--model"])
        .arg(&model)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).unwrap();
    let port = address.strip_prefix("127.0.0.1:").expect("loopback");

    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /api/model HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("tiny.safetensors"), "{answer}");

    let second = vitpcm().args(["serve", "--port", port, "--model"]).arg(&model).output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(message.contains(&format!("port {port} is taken")) && message.lines().count() == 1, "{message}");

    let missing = vitpcm().args(["serve", "--model", "no-such-file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));

    #[cfg(unix)]
    {
        let asked = Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap();
        assert!(asked.success());
        assert_eq!(server.wait().unwrap().code(), Some(0));
    }
    #[cfg(not(unix))]
    {
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
