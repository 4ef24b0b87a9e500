//! The viewer's HTTP API without sockets: the input is what a client sends, from the first byte of the request's head.

use super::Target;
use image::ImageFormat;
use std::io::Cursor;
use vitpcm::{Device, Segmenter, SegmenterOptions, random_model};
use vitpcm_data::DrawnScenes;
use vitpcm_viewer::{Conversation, Limits, Server};

/// Placeholder for the id of an existing image; real ids are random.
const ID: &str = "ID-OF-AN-IMAGE";
/// An upload may evict the image, and a deletion removes it, so it is uploaded again after this many inputs.
const RENEWED_AFTER: u32 = 200;

pub(super) const HTTP: Target = Target {
    name: "http",
    what: "requests to the viewer",
    dictionary: &[
        "GET ",
        "POST ",
        "DELETE ",
        "HEAD ",
        "OPTIONS ",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "Host: localhost\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: ",
        "Expect: 100-continue\r\n",
        "Connection: close\r\n",
        "Origin: http://localhost\r\n",
        "Content-Type: application/json\r\n",
        "\r\n\r\n",
        "0\r\n\r\n",
        "/api/images/",
        "/api/downloads",
        "?name=",
        "%00",
        "%2e%2e",
        "../",
        "/mask",
        "/scores/dog",
        "\"tags\"",
        "\"images\"",
        "\"format\"",
        "\"crf\"",
        "null",
        "[",
        "]",
        "{",
        "}",
        ID,
    ],
    seeds: || {
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
        let post = |path: &str, kind: &str, body: &[u8]| {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let mut request = [head.as_bytes(), body].concat();
            repair_length(&mut request);
            request
        };
        let json = "application/json";
        let chunked = b"POST /api/images/ID-OF-AN-IMAGE/mask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                        Transfer-Encoding: chunked\r\n\r\n10\r\n{\"tags\":[\"dog\"]}\r\n0\r\n\r\n";
        vec![
            get("/"),
            get("/api/model"),
            get(&format!("/api/images/{ID}")),
            get(&format!("/api/images/{ID}/view")),
            get(&format!("/api/images/{ID}/scores/dog")),
            post(&format!("/api/images/{ID}/mask"), json, br#"{"tags":["dog"]}"#),
            post(
                "/api/downloads",
                json,
                format!(r#"{{"format":"coco","images":[{{"id":"{ID}","tags":["dog"]}}]}}"#).as_bytes(),
            ),
            post("/api/images?name=a.png", "image/png", &picture()),
            chunked.to_vec(),
            format!("DELETE /api/images/{ID} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes(),
        ]
    },
    subject: |_| {
        let model = random_model("vit-nano16", &["dog", "person"], 1).expect("a known variant");
        let options = SegmenterOptions { size: Some(32), ..SegmenterOptions::default() };
        let segmenter = Segmenter::new(&model, &Device::Cpu, options).expect("a whole model");
        let limits =
            Limits { max_pixels: 1 << 16, max_images: 20, max_kept_bytes: 32 << 20, ..Limits::default() };
        let server = Server::bind("127.0.0.1", 0, segmenter, "a model", limits).expect("a free port");
        let server = server.into_conversation().expect("a runtime");
        let mut id = uploaded(&server);
        let mut num_inputs = 0u32;
        Box::new(move |bytes| {
            num_inputs += 1;
            if num_inputs.is_multiple_of(RENEWED_AFTER) {
                id = uploaded(&server);
            }
            let answer = server.answer(&with_id(bytes, &id));
            let head = answer.split(|&byte| byte == b'\r').next().unwrap_or_default();
            let head = String::from_utf8_lossy(head).into_owned();
            // A panic in a handler gives 500: a bug of ours, whatever the request.
            assert!(!head.contains(" 500"), "{}", String::from_utf8_lossy(&answer));
            // Messages are compared without digits, but the status counts.
            let status: String =
                head.bytes().skip(9).take(3).map(|digit| char::from(digit.wrapping_add(49))).collect();
            let body = answer
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .map_or(&b""[..], |at| &answer[at + 4..]);
            let words = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            if head.contains(" 20") { format!("ok {status}") } else { format!("{status} {words}") }
        })
    },
    repair: Some(repair_length),
    max_bytes: 512 << 20,
};

fn picture() -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    DrawnScenes { seed: 5, side: 24 }
        .scene(1)
        .image
        .write_to(&mut bytes, ImageFormat::Png)
        .expect("memory takes all");
    bytes.into_inner()
}

fn uploaded(server: &Conversation) -> String {
    let picture = picture();
    let head = format!(
        "POST /api/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: {}\r\n\r\n",
        picture.len()
    );
    let answer = server.answer(&[head.as_bytes(), &picture].concat());
    let text = String::from_utf8_lossy(&answer);
    let id = text.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    id.unwrap_or_else(|| panic!("no image was taken: {text}")).to_string()
}

fn with_id(bytes: &[u8], id: &str) -> Vec<u8> {
    let mut result = Vec::with_capacity(bytes.len() + 64);
    let mut rest = bytes;
    while let Some(at) = rest.windows(ID.len()).position(|window| window == ID.as_bytes()) {
        result.extend_from_slice(&rest[..at]);
        result.extend_from_slice(id.as_bytes());
        rest = &rest[at + ID.len()..];
    }
    result.extend_from_slice(rest);
    result
}

/// Sets the declared length to that of the body, including the id to be inserted.
fn repair_length(bytes: &mut Vec<u8>) {
    const FIELD: &[u8] = b"Content-Length: ";
    let Some(body) = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else { return };
    let Some(start) =
        bytes[..body].windows(FIELD.len()).position(|window| window == FIELD).map(|at| at + FIELD.len())
    else {
        return;
    };
    let digits = bytes[start..body].iter().take_while(|byte| byte.is_ascii_digit()).count();
    // All ids have the same length.
    let length = with_id(&bytes[body..], ANY_ID).len();
    bytes.splice(start..start + digits, length.to_string().into_bytes());
}

/// As long as every id.
const ANY_ID: &str = "0123456789abcdef0123456789abcdef";
