//! `vitpcm serve` as a user runs it: says where it is, refuses a taken port and senseless limits, keeps to its memory, ends at
//! Ctrl-C.

mod untrained;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use vitpcm_masks::Classes;

fn vitpcm() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vitpcm"))
}

/// A process that ends with its test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with a tiny model that is made in the folder, and the address it listens on.
fn start(folder: &Path, options: &[&str]) -> (Running, String) {
    let model = folder.join("tiny.safetensors");
    untrained::write(&model, &Classes::voc(), 0);
    let mut server = vitpcm()
        .args(["serve", "--port", "0", "--model"])
        .arg(&model)
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).unwrap();
    (Running(server), address.to_owned())
}

#[test]
fn serve_says_where_it_is_refuses_a_taken_port_and_ends_at_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    #[cfg_attr(not(unix), allow(unused_mut))]
    let (mut server, address) = start(folder.path(), &[]);
    let model = folder.path().join("tiny.safetensors");
    let port = address.strip_prefix("127.0.0.1:").expect("loopback");

    let mut stream = TcpStream::connect(&address).unwrap();
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
        let asked = Command::new("kill").args(["-INT", &server.0.id().to_string()]).status().unwrap();
        assert!(asked.success());
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
    #[cfg(not(unix))]
    server.0.kill().unwrap();
}

#[test]
fn senseless_limits_are_refused_by_name() {
    for (option, values) in [
        ("--max-connections", &["0", "18446744073709551615", "-1"][..]),
        ("--max-images", &["0", "18446744073709551615"]),
        ("--max-upload", &["0", "18446744073709551615"]),
        ("--max-memory", &["0", "1", "18446744073709551615"]),
        ("--max-megapixels", &["0", "18446744073709551615"]),
        ("--max-waiting", &["0", "18446744073709551615"]),
    ] {
        for value in values {
            let refused = vitpcm().arg("serve").arg(format!("{option}={value}")).output().unwrap();
            let message = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(2), "{option} {value}: {message}");
            assert!(message.contains(option) && message.contains(value), "{message}");
        }
    }
}

/// The most memory that a process ever had, in MiB.
#[cfg(target_os = "linux")]
fn peak_memory(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() >> 10
}

/// A BMP file of grey noise.
#[cfg(target_os = "linux")]
fn noise(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    file.extend([width.to_le_bytes(), height.to_le_bytes()].concat());
    file.extend(b"\x01\0\x18\0");
    file.resize(54, 0);
    let mut state = 1u32;
    file.extend((0..3 * width * height).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }));
    file
}

#[cfg(target_os = "linux")]
#[test]
fn clients_that_never_read_cannot_take_more_memory_than_allowed() {
    const MAX_MEMORY: usize = 64;
    const NUM_CLIENTS: usize = 40;
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = start(folder.path(), &["--max-memory", "64", "--max-connections", "400"]);
    let ask = |head: &str, body: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let (length, kind) = (body.len(), if body.starts_with(b"BM") { "octet-stream" } else { "json" });
        write!(stream, "{head} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n").unwrap();
        write!(stream, "Content-Type: application/{kind}\r\n\r\n").unwrap();
        stream.write_all(body).unwrap();
        stream
    };
    let answer = |mut stream: TcpStream| {
        let mut start = vec![0; 4096];
        let length = stream.read(&mut start).unwrap();
        String::from_utf8_lossy(&start[..length]).into_owned()
    };
    // 1500 × 1000 × 3 bytes: kept as a file, as pixels and as a view. A name of a packed format spares the zip its work.
    let file = noise(1500, 1000);
    let kept = answer(ask("POST /api/images?name=noise.png", &file));
    let id = kept
        .split("\"id\":\"")
        .nth(1)
        .unwrap_or_else(|| panic!("{kept}"))
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    let one = format!("{{\"id\": \"{id}\"}}");
    let wish = |num_images: usize| {
        format!("{{\"format\": \"voc\", \"images\": [{}]}}", vec![one.as_str(); num_images].join(", "))
    };
    // What one upload and one download take, work included.
    assert!(answer(ask("POST /api/downloads", wish(3).as_bytes())).starts_with("HTTP/1.1 200"));
    let before = peak_memory(server.0.id());

    let mut held = Vec::new();
    let mut num_busy = 0;
    for _ in 0..NUM_CLIENTS {
        let download = ask("POST /api/downloads", wish(3).as_bytes());
        let mut status = [0; 12];
        download.peek(&mut status).unwrap();
        num_busy += usize::from(&status == b"HTTP/1.1 503");
        held.push(download);
        // Views and masks, many on one connection; an upload that never ends.
        let views = format!("GET /api/images/{id}/view HTTP/1.1\r\nHost: {address}\r\n\r\n").repeat(50);
        let mut pipelined = TcpStream::connect(&address).unwrap();
        pipelined.write_all(views.as_bytes()).unwrap();
        held.push(pipelined);
        held.push(ask(&format!("POST /api/images/{id}/mask"), br#"{"tags": "any"}"#));
        let mut unfinished = TcpStream::connect(&address).unwrap();
        write!(
            unfinished,
            "POST /api/images?name=a HTTP/1.1\r\nHost: {address}\r\nContent-Type: image/bmp\r\nContent-Length: 9999999\r\n\r\n"
        )
        .unwrap();
        let _ = unfinished.write_all(&file[..1 << 20]);
        held.push(unfinished);
    }
    let taken = peak_memory(server.0.id()) - before;
    println!(
        "{NUM_CLIENTS} clients: {before} MiB before, {taken} MiB more at most; {num_busy} told to come back"
    );
    assert!(taken < MAX_MEMORY, "{taken} MiB more than the {before} MiB before");
    assert!(num_busy > 0);
    // Others are still answered.
    assert!(answer(ask("GET /api/model", b"")).starts_with("HTTP/1.1 200"));
}
