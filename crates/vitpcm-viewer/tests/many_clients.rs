//! 200 requests from 16 clients at once, good ones among oversize, truncated, bomb-like and hostile ones: every good one is
//! answered right, every bad one with 4xx, and memory stays within bounds.

mod client;

use client::{Response, TestServer, encoded, picture, png_of_size};
use image::ImageFormat;
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use vitpcm::{Device, Segmenter, SegmenterOptions, TagMode, embedded_model};
use vitpcm_masks::encode_label_png;
use vitpcm_viewer::Limits;

const NUM_REQUESTS: usize = 200;
const NUM_CLIENTS: usize = 16;
const MAX_UPLOAD: usize = 4 << 20;

/// Asks again while the server is busy, as its answer says.
fn patiently(request: impl Fn() -> Response) -> Response {
    loop {
        let response = request();
        if response.status != 503 {
            return response;
        }
        assert_eq!(response.header("retry-after"), Some("1"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The most memory this process ever had, in bytes; only Linux tells.
fn peak_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
}

#[test]
fn two_hundred_requests_of_sixteen_clients_are_answered_right() {
    let grown = storm(client::segmenter);
    // 16 MiB kept, 4 uploads of 4 MiB at a time, a decoder, and what the allocator does not give back at once.
    assert!(grown.is_none_or(|mib| mib < 256), "memory grew by {grown:?} MiB");
}

/// Minutes on two cores: `cargo test --release --test many_clients -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes; run by hand"]
fn the_embedded_model_stands_it_as_well() {
    let segmenter = || {
        let options = SegmenterOptions { size: Some(322), ..SegmenterOptions::default() };
        Segmenter::new(&embedded_model(&Device::Cpu).unwrap(), &Device::Cpu, options).unwrap()
    };
    let grown = storm(segmenter);
    println!("peak memory grew by {grown:?} MiB, the two models' weights and the network's work included");
    assert!(grown.is_none_or(|mib| mib < 2048));
}

/// All requests at once. Gives by how many MiB the most memory that this process ever had has grown.
fn storm(segmenter: fn() -> Segmenter) -> Option<usize> {
    let before = peak_memory();
    let limits = Limits {
        max_upload_bytes: MAX_UPLOAD,
        max_pixels: 1_000_000,
        max_images: 40,
        max_kept_bytes: 16 << 20,
        max_uploads: 4,
        ..Limits::default()
    };
    let server = TestServer::start(segmenter(), limits);
    let segmenter = segmenter();
    let tag = segmenter.classes().index_of("person").unwrap();
    let pictures: Vec<_> = (0..4).map(picture).collect();
    let files: Vec<_> = pictures.iter().map(|picture| encoded(picture, ImageFormat::Png)).collect();
    let expected: Vec<Vec<u8>> = pictures
        .iter()
        .map(|picture| {
            let mask = segmenter.segment(picture, TagMode::Given(&[tag])).unwrap().label_map();
            let mut png = Vec::new();
            encode_label_png(&mut png, &mask).unwrap();
            png
        })
        .collect();
    let jpeg = encoded(&pictures[0], ImageFormat::Jpeg);
    let oversize = vec![0x55; MAX_UPLOAD + 1];

    let next = AtomicUsize::new(0);
    let num_good = AtomicUsize::new(0);
    let one = |i: usize| match i % 8 {
        0 => assert_eq!(patiently(|| server.upload("large.png", &oversize)).status, 413),
        1 => assert_eq!(patiently(|| server.upload("half.jpg", &jpeg[..jpeg.len() - 20])).status, 422),
        2 => assert_eq!(patiently(|| server.upload("bomb.png", &png_of_size(65_000, 65_000))).status, 422),
        3 => {
            // A body that breaks off: there is nobody left to answer.
            let mut stream = server.connect();
            let head = format!(
                "POST /api/images HTTP/1.1\r\nHost: {}\r\nContent-Type: image/png\r\nContent-Length: 9999\r\n\r\n",
                server.address
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&files[0][..20]).unwrap();
        }
        k => {
            let which = i / 8 % files.len();
            let name =
                ["a.png", "../../../etc/passwd", "<script>alert(1)</script>\r\n\0.png", "\u{202e}gpj.exe"]
                    [k - 4];
            let kept = patiently(|| server.upload(name, &files[which]));
            assert_eq!(kept.status, 201);
            let info = kept.json();
            let told = info["name"].as_str().unwrap();
            assert!(!told.contains(['/', '<', '\r', '\0', '\u{202e}']), "{told}");
            let wish = json!({"format": "png", "images": [{"id": info["id"], "tags": ["person"]}]});
            let mask = patiently(|| server.post_json("/api/downloads", &wish));
            assert_eq!((mask.status, &mask.body), (200, &expected[which]));
            num_good.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..NUM_CLIENTS {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= NUM_REQUESTS {
                        return;
                    }
                    one(i);
                }
            });
        }
    });
    assert_eq!(num_good.into_inner(), NUM_REQUESTS / 2);
    assert_eq!(server.get("/api/model").status, 200);
    server.stop();
    Some((peak_memory()? - before?) >> 20)
}
