//! The API as clients see it, through real sockets: answers, refusals, limits, headers.

mod client;

use client::{TestServer, encoded, picture, png_of_size, read_response, segmenter};
use image::{ImageFormat, RgbImage};
use serde_json::json;
use std::io::{Read, Write};
use std::time::Duration;
use vitpcm::TagMode;
use vitpcm_masks::{LabelMap, encode_label_png};
use vitpcm_viewer::Limits;

fn data_url(mask: &LabelMap) -> String {
    use base64::Engine;
    let mut png = Vec::new();
    encode_label_png(&mut png, mask).unwrap();
    format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(png))
}

/// Sends a picture, expects it to be kept, gives its id.
#[track_caller]
fn keep(server: &TestServer, name: &str, picture: &RgbImage) -> String {
    let response = server.upload(name, &encoded(picture, ImageFormat::Png));
    assert_eq!(response.status, 201, "{}", String::from_utf8_lossy(&response.body));
    response.json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn an_image_is_sent_once_and_masked_for_any_tags() {
    let server = TestServer::start(segmenter(), Limits::default());
    let picture = picture(3);
    let id = keep(&server, "holiday/dog.png", &picture);
    let info = server.get(&format!("/api/images/{id}")).json();
    assert_eq!((&info["name"], &info["width"], &info["height"]), (&json!("dog.png"), &json!(63), &json!(40)));
    let scores = segmenter().score(&picture).unwrap();
    for (i, tag) in info["tags"].as_array().unwrap().iter().enumerate() {
        let probability = tag["probability"].as_f64().unwrap() as f32;
        assert!((probability - scores.tag_probabilities[i + 1]).abs() < 1e-6);
    }
    let mask_path = format!("/api/images/{id}/mask");
    for (wish, mode) in [
        (json!({"tags": ["dog"]}), TagMode::Given(&[1])),
        (json!({"tags": ["person", "dog"]}), TagMode::Given(&[1, 2])),
        (json!({"tags": [], "crf": null}), TagMode::Given(&[])),
        (json!({"tags": "any"}), TagMode::Unknown),
        (json!({"tags": "suggested", "size": "view"}), TagMode::Predicted { threshold: 0.5 }),
        (json!({}), TagMode::Predicted { threshold: 0.5 }),
    ] {
        let answer = server.post_json(&mask_path, &wish).json();
        let expected = scores.with_tags(mode).unwrap().label_map();
        assert_eq!(answer["mask"], data_url(&expected), "{wish}");
        let pixels = answer["areas"].as_array().unwrap().iter().map(|area| area["pixels"].as_u64().unwrap());
        assert_eq!(pixels.sum::<u64>(), 63 * 40);
    }
    let segmentation = scores.with_tags(TagMode::Given(&[1, 2])).unwrap();
    let params = vitpcm::CrfParams { gaussian_weight: 6.0, bilateral_weight: 8.0, ..Default::default() };
    let (on_grid, alignment) = (&segmentation.scores_on_grid, segmentation.alignment);
    let refined = vitpcm::refined_label_map(on_grid, &picture, alignment, &params).unwrap();
    let mut wish = json!({"tags": ["dog", "person"], "crf": 2.0});
    assert_eq!(server.post_json(&mask_path, &wish).json()["mask"], data_url(&refined));
    let filled = vitpcm::UnsureBackground::FILLED.apply(refined, on_grid, alignment).unwrap();
    wish["fill"] = json!(true);
    assert_eq!(server.post_json(&mask_path, &wish).json()["mask"], data_url(&filled));

    // A point in the middle of the image corrects it, and has its class whatever the mask's size.
    let (_, features) = segmenter().score_with_features(&picture).unwrap();
    let hint = vitpcm::Hint { class: 2, line: vec![(31.5, 20.0)] };
    let corrected =
        segmentation.with_hints(std::slice::from_ref(&hint), &features, &Default::default()).unwrap();
    let corrected = vitpcm::draw_hints(corrected.label_map(), &[hint]);
    assert_eq!(corrected.labels()[20 * 63 + 31], 2);
    let wish = json!({"tags": ["dog", "person"], "hints": [{"class": "person", "line": [[0.5, 0.5]]}]});
    assert_eq!(server.post_json(&mask_path, &wish).json()["mask"], data_url(&corrected));

    let view = server.get(&format!("/api/images/{id}/view"));
    let view = image::load_from_memory_with_format(&view.body, ImageFormat::Jpeg).unwrap();
    assert_eq!((view.width(), view.height()), (63, 40));
    let heat = server.get(&format!("/api/images/{id}/scores/dog"));
    let heat = image::load_from_memory_with_format(&heat.body, ImageFormat::Png).unwrap().into_luma8();
    let plane = scores.scores_on_grid.plane(1);
    assert!(heat.pixels().zip(plane).all(|(pixel, score)| f32::from(pixel.0[0]) == (score * 255.0).round()));

    let delete = format!("DELETE /api/images/{id} HTTP/1.1\r\nHost: {}\r\n", server.address);
    assert_eq!(server.send(&delete, b"").status, 204);
    assert_eq!(server.send(&delete, b"").status, 404);
    assert_eq!(server.post_json(&mask_path, &json!({})).status, 404);
    server.stop();
}

#[test]
fn every_format_can_be_downloaded_alone_and_for_several_images() {
    let server = TestServer::start(segmenter(), Limits::default());
    let ids = [keep(&server, "a.png", &picture(1)), keep(&server, "A.png", &picture(2))];
    let formats = server.get("/api/model").json()["formats"].as_array().unwrap().clone();
    assert!(formats.len() >= 10);
    for format in formats {
        for num_images in [1, 2] {
            let images: Vec<_> =
                ids[..num_images].iter().map(|id| json!({"id": id, "tags": ["dog"]})).collect();
            let wish = json!({"format": format["name"], "images": images});
            let response = server.post_json("/api/downloads", &wish);
            assert_eq!(response.status, 200, "{wish}: {}", String::from_utf8_lossy(&response.body));
            let name = response.header("content-disposition").unwrap();
            assert!(name.starts_with("attachment; filename=\"") && !response.body.is_empty(), "{name}");
            if name.contains(".zip") {
                assert_eq!(response.body[..2], *b"PK", "{wish}");
            }
        }
    }
    let wish = json!({"format": "png", "images": [{"id": ids[0], "tags": ["dog"]}]});
    let response = server.post_json("/api/downloads", &wish);
    assert_eq!(
        response.header("content-disposition"),
        Some("attachment; filename=\"a.png\"; filename*=UTF-8''a.png")
    );
    let expected = segmenter().segment(&picture(1), TagMode::Given(&[1])).unwrap().label_map();
    let mut png = Vec::new();
    encode_label_png(&mut png, &expected).unwrap();
    assert_eq!(response.body, png);
    server.stop();
}

#[test]
fn bad_requests_are_told_what_is_wrong() {
    let limits = Limits { max_upload_bytes: 100_000, max_pixels: 10_000, ..Limits::default() };
    let server = TestServer::start(segmenter(), limits);
    let good = encoded(&picture(0), ImageFormat::Png);
    let jpeg = encoded(&picture(0), ImageFormat::Jpeg);
    let half = &jpeg[..jpeg.len() / 2];
    for (what, file, status, words) in [
        ("empty", &b""[..], 422, "empty"),
        ("text", b"hello", 422, "text"),
        ("too many pixels", &png_of_size(101, 100), 422, "more than the 10000"),
        ("a bomb", &png_of_size(60_000, 60_000), 422, "more than"),
        ("half a JPEG", half, 422, "truncated"),
        ("half a PNG", &good[..good.len() / 2], 422, ""),
        ("an archive", b"PK\x03\x04 and more", 422, "zip"),
        ("too large", &vec![0; 100_001], 413, "100000"),
    ] {
        let response = server.upload("x.png", file);
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(response.status, status, "{what}: {error}");
        assert!(error.contains(words), "{what}: {error}");
    }
    let id = keep(&server, "x.png", &picture(0));
    let path = format!("/api/images/{id}/mask");
    for (path, body, status) in [
        (path.as_str(), json!({"tags": ["unicorn"]}), 422),
        (&path, json!({"tags": ["background"]}), 422),
        (&path, json!({"crf": 1e30}), 422),
        (&path, json!({"tag": []}), 400),
        (&path, json!("dog"), 400),
        ("/api/images/0/mask", json!({}), 404),
        ("/api/downloads", json!({"format": "png", "images": []}), 422),
        ("/api/downloads", json!({"format": "exe", "images": [{"id": id}]}), 400),
        ("/api/downloads", json!({"format": "png", "images": [{"id": "../../etc/passwd"}]}), 404),
        ("/api/downloads", json!({"format": "png", "images": [{"id": id, "size": "view"}]}), 400),
    ] {
        let response = server.post_json(path, &body);
        assert_eq!(response.status, status, "{body}: {}", String::from_utf8_lossy(&response.body));
    }
    assert_eq!(server.post(&path, "application/json", b"{").status, 400);
    assert_eq!(server.post(&path, "text/plain", b"{}").status, 415);
    assert_eq!(server.post("/api/images", "multipart/form-data", &good).status, 415);
    assert_eq!(server.post("/api/model", "application/json", b"{}").status, 405);
    assert_eq!(server.post("/api/images?name=a&name=b", "image/png", &good).status, 400);
    for path in ["/etc/passwd", "/../Cargo.toml", "/assets/..%2f..%2fCargo.toml", "/api/images/x/scores/dog"]
    {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(server.get(&format!("/api/images/{id}/scores/unicorn")).status, 404);
    server.stop();
}

#[test]
fn other_sites_are_turned_away_and_answers_are_strict() {
    let server = TestServer::start(segmenter(), Limits::default());
    let own = server.address;
    let with = |headers: &str| server.send(&format!("GET /api/model HTTP/1.1\r\n{headers}"), b"").status;
    assert_eq!(with(&format!("Host: {own}\r\n")), 200);
    assert_eq!(with("Host: localhost:1\r\n"), 200);
    assert_eq!(with("Host: evil.example\r\n"), 421);
    assert_eq!(with(&format!("Host: {own}\r\nHost: evil.example\r\n")), 421);
    let absolute = format!("GET http://evil.example/api/model HTTP/1.1\r\nHost: {own}\r\n");
    assert_eq!(server.send(&absolute, b"").status, 421);
    assert_eq!(with(&format!("Host: {own}\r\nOrigin: http://evil.example\r\n")), 403);
    assert_eq!(with(&format!("Host: {own}\r\nSec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(with(&format!("Host: {own}\r\nOrigin: http://{own}\r\nSec-Fetch-Site: same-origin\r\n")), 200);
    for path in ["/", "/assets/viewer.js", "/api/model", "/nothing"] {
        let response = server.get(path);
        let csp = response.header("content-security-policy").unwrap();
        assert!(csp.contains("default-src 'self'") && csp.contains("frame-ancestors 'none'"), "{csp}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(response.header("cross-origin-resource-policy"), Some("same-origin"));
        assert!(response.header("cache-control").is_some());
    }
    server.stop();
}

#[test]
fn the_page_refers_to_nothing_but_itself() {
    let server = TestServer::start(segmenter(), Limits::default());
    let page = String::from_utf8(server.get("/").body).unwrap();
    for part in page.split(['"', '\'']).filter(|part| part.starts_with("/assets/")) {
        assert_eq!(server.get(part).status, 200, "{part}");
    }
    assert!(!page.contains("https://") && !page.contains("style=") && !page.contains("onclick"));
    server.stop();
}

#[test]
fn a_full_queue_says_so_and_slow_clients_lose_their_place() {
    let limits = Limits { max_uploads: 1, body_time: Duration::from_millis(700), ..Limits::default() };
    let server = TestServer::start(segmenter(), limits);
    let file = encoded(&picture(0), ImageFormat::Png);
    let mut slow = server.connect();
    let length = file.len();
    let head = format!(
        "POST /api/images HTTP/1.1\r\nHost: {}\r\nContent-Type: image/png\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n",
        server.address
    );
    slow.write_all(head.as_bytes()).unwrap();
    slow.write_all(&file[..10]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let refused = server.upload("x.png", &file);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(read_response(slow).unwrap().status, 408);
    keep(&server, "x.png", &picture(0));
    server.stop();
}

#[test]
fn silent_connections_are_closed_and_a_stop_does_not_wait_for_them() {
    let server =
        TestServer::start(segmenter(), Limits { head_time: Duration::from_millis(300), ..Limits::default() });
    let mut silent = server.connect();
    silent.write_all(b"GET / HT").unwrap();
    assert!(matches!(silent.read_to_end(&mut Vec::new()), Ok(_) | Err(_)));
    let _waiting = server.connect();
    server.stop();
}

/// A picture that no format makes smaller, so that its downloads are as large as they look.
fn noise(width: u32, height: u32) -> RgbImage {
    let mut state = 1u32;
    RgbImage::from_fn(width, height, |_, _| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        image::Rgb([(state >> 24) as u8, (state >> 16) as u8, (state >> 8) as u8])
    })
}

#[test]
fn clients_that_do_not_read_are_cut_off_and_others_get_their_answers() {
    let limits =
        Limits { max_transit_bytes: 64 << 20, write_time: Duration::from_secs(4), ..Limits::default() };
    let server = TestServer::start(segmenter(), limits);
    let id = keep(&server, "noise.png", &noise(1500, 1000));
    // About 27 MB: two of them fit, and neither into the buffers of a socket.
    let wish = json!({"format": "voc", "images": vec![json!({"id": id}); 6]}).to_string();
    let head = format!(
        "POST /api/downloads HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.address,
        wish.len()
    );
    let stalled: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(wish.as_bytes()).unwrap();
            stream.peek(&mut [0]).unwrap();
            stream
        })
        .collect();
    let download = || server.post("/api/downloads", "application/json", wish.as_bytes());
    let refused = download();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(refused.json()["error"].as_str().unwrap().contains("busy"));
    assert_eq!(server.get("/api/model").status, 200);
    assert_eq!(server.get(&format!("/api/images/{id}")).status, 200);
    let answer = loop {
        let answer = download();
        if answer.status != 503 {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let length: usize = answer.header("content-length").unwrap().parse().unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, length));
    for mut stream in stalled {
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        assert!(received.len() < length, "the whole answer was sent to a client that did not read");
    }
    let too_large = json!({"format": "voc", "images": vec![json!({"id": id}); 12]});
    assert_eq!(server.post_json("/api/downloads", &too_large).status, 422);
    server.stop();
}

#[test]
fn an_image_that_memory_has_no_room_for_is_refused() {
    let limits = Limits { max_kept_bytes: 1 << 20, ..Limits::default() };
    let server = TestServer::start(segmenter(), limits);
    for (picture, status) in [(noise(500, 500), 422), (noise(1000, 1000), 422), (picture(1), 201)] {
        let response = server.upload("x.png", &encoded(&picture, ImageFormat::Png));
        assert_eq!(response.status, status, "{}", String::from_utf8_lossy(&response.body));
    }
    assert_eq!(server.get("/api/model").json()["limits"]["pixels"], (1 << 20) / 4);
    server.stop();
}
