//! The OpenAPI document against the server: every operation is driven with good and bad requests, and each answer is held to
//! what the document says of it: its status, its content type, its headers, its JSON.

mod client;
mod schema;

use client::{Response, TestServer, encoded, picture, png_of_size, segmenter};
use image::ImageFormat;
use schema::violation;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vitpcm_viewer::Limits;

/// Answers that need pressure, patience or a bug, of which `http_api.rs` has the first two; and that to a long address, which
/// depends on how it arrives.
const NOT_DRIVEN: [&str; 4] = ["503", "408", "500", "414"];

/// A server, its document, and which answers were seen.
struct Driven {
    server: TestServer,
    document: Value,
    seen: BTreeSet<(String, String)>,
}

impl Driven {
    fn start() -> Driven {
        let server =
            TestServer::start(segmenter(), Limits { max_upload_bytes: 100_000, ..Limits::default() });
        let document = server.get("/api/openapi.json").json();
        Driven { server, document, seen: BTreeSet::new() }
    }

    fn upload(&self) -> String {
        let kept = self.server.upload("a.png", &encoded(&picture(0), ImageFormat::Png));
        kept.json()["id"].as_str().unwrap().to_owned()
    }

    /// Sends a request; its answer must have the status, and be as the document says.
    #[track_caller]
    fn drive(&mut self, operation: &str, request: Request<'_>, status: u16) -> Response {
        let (method, template) = operation.split_once(' ').unwrap();
        let path = request.path.unwrap_or(template);
        let host = request.host.map_or_else(|| self.server.address.to_string(), str::to_owned);
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{}", request.headers);
        let response = self.server.send(&head, request.body);
        let text = String::from_utf8_lossy(&response.body[..response.body.len().min(300)]).into_owned();
        assert_eq!(response.status, status, "{operation}: {text}");
        let operations = &self.document["paths"][template][method.to_lowercase()];
        let documented = self.resolved(&operations["responses"][status.to_string()]);
        assert!(documented.is_object(), "{operation} answers {status}, which is not documented");
        self.check(&response, documented, operation);
        self.seen.insert((operation.to_owned(), status.to_string()));
        response
    }

    /// Holds an answer to the document's description of it.
    #[track_caller]
    fn check(&self, response: &Response, documented: &Value, operation: &str) {
        for name in documented["headers"].as_object().into_iter().flat_map(|headers| headers.keys()) {
            assert!(response.header(name).is_some(), "{operation}: no {name}");
        }
        let Some(contents) = documented["content"].as_object() else {
            assert!(response.body.is_empty(), "{operation}: a body that is not documented");
            return;
        };
        let kind = response.header("content-type").unwrap();
        let content = contents.get(kind).unwrap_or_else(|| panic!("{operation}: {kind} is not documented"));
        if kind == "application/json" {
            let wrong = violation(&response.json(), &content["schema"], &self.document);
            assert_eq!(wrong, None, "{operation}");
        }
    }

    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        schema::resolved(value, &self.document)
    }

    fn operations(&self) -> Vec<(String, String)> {
        let mut operations = Vec::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
            operations.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
        }
        operations
    }
}

/// What is sent, but for the method.
#[derive(Clone, Copy, Default)]
struct Request<'a> {
    /// The operation's own where nothing else is said.
    path: Option<&'a str>,
    host: Option<&'a str>,
    headers: &'a str,
    body: &'a [u8],
}

fn at(path: &str) -> Request<'_> {
    Request { path: Some(path), ..Request::default() }
}

const AS_JSON: &str = "Content-Type: application/json\r\n";
const AS_PNG: &str = "Content-Type: image/png\r\n";
const AS_TEXT: &str = "Content-Type: text/plain\r\n";

#[test]
fn every_documented_answer_is_given_as_documented() {
    let mut api = Driven::start();
    for (method, template) in api.operations() {
        let operation = format!("{method} {template}");
        let good = Request::default();
        let large = format!("X-Large: {}\r\n", "x".repeat(200_000));
        api.drive(&operation, Request { host: Some("evil.example"), ..good }, 421);
        api.drive(&operation, Request { headers: "Origin: http://evil.example\r\n", ..good }, 403);
        api.drive(&operation, Request { headers: &large, ..good }, 431);
        api.drive(&operation, Request { headers: "Content-Length: many\r\n", ..good }, 400);
    }

    api.drive("GET /api/openapi.json", Request::default(), 200);
    api.drive("GET /api/model", Request::default(), 200);

    let operation = "POST /api/images";
    let file = encoded(&picture(0), ImageFormat::Png);
    let upload = Request { path: Some("/api/images?name=a.png"), headers: AS_PNG, body: &file, host: None };
    api.drive(operation, upload, 201);
    api.drive(operation, Request { path: None, ..upload }, 201);
    api.drive(operation, Request { headers: "Content-Type: application/octet-stream\r\n", ..upload }, 201);
    api.drive(operation, Request { path: Some("/api/images?name=%FF"), ..upload }, 201);
    api.drive(operation, Request { path: Some("/api/images?name=a&name=b"), ..upload }, 400);
    api.drive(operation, Request { body: &vec![0; 100_001], ..upload }, 413);
    api.drive(operation, Request { headers: AS_TEXT, ..upload }, 415);
    api.drive(operation, Request { headers: "", ..upload }, 415);
    for file in [&b""[..], b"hello", &file[..50], &png_of_size(60_000, 60_000)] {
        api.drive(operation, Request { body: file, ..upload }, 422);
    }

    let id = api.upload();
    let own = |rest: &str| format!("/api/images/{id}{rest}");
    let no_ids = ["/api/images/0", "/api/images/%FF", "/api/images/%00", "/api/images/..%2f"];
    api.drive("GET /api/images/{id}", at(&own("")), 200);
    api.drive("GET /api/images/{id}/view", at(&own("/view")), 200);
    for class in ["dog", "background"] {
        api.drive("GET /api/images/{id}/scores/{class}", at(&own(&format!("/scores/{class}"))), 200);
    }
    for class in ["unicorn", "%FF", "a%2Fb"] {
        api.drive("GET /api/images/{id}/scores/{class}", at(&own(&format!("/scores/{class}"))), 404);
    }
    for no_id in no_ids {
        api.drive("GET /api/images/{id}", at(no_id), 404);
        api.drive("DELETE /api/images/{id}", at(no_id), 404);
        api.drive("GET /api/images/{id}/view", at(&format!("{no_id}/view")), 404);
        api.drive("GET /api/images/{id}/scores/{class}", at(&format!("{no_id}/scores/dog")), 404);
    }

    let operation = "POST /api/images/{id}/mask";
    let path = own("/mask");
    let long_key = format!("{{\"{}\": 1}}", "k".repeat(10_000));
    for (body, status) in [
        ("{}", 200),
        (r#"{"tags": ["dog", "dog"], "crf": 1.0, "fill": true, "size": "view"}"#, 200),
        (r#"{"tags": "any", "crf": null}"#, 200),
        (
            r#"{"hints": [{"class": "dog", "line": [[0.2, 0.3], [1, 1]]}, {"class": "background", "line": [[0, 0]]}]}"#,
            200,
        ),
        (r#"{"hints": []}"#, 200),
        (r#"{"hints": [["dog", [[0.2, 0.3]]]]}"#, 400),
        (r#"{"hints": [{"class": "dog"}]}"#, 400),
        (r#"{"hints": [{"class": "unicorn", "line": [[0.2, 0.3]]}]}"#, 422),
        (r#"{"hints": [{"class": "dog", "line": [[0.2, 1.3]]}]}"#, 422),
        (r#"{"hints": [{"class": "dog", "line": []}]}"#, 422),
        ("", 400),
        ("{", 400),
        ("[]", 400),
        (&long_key, 400),
        (r#"{"tags": "all"}"#, 400),
        (r#"{"tags": [1]}"#, 400),
        (r#"{"crf": "1"}"#, 400),
        (r#"{"crf": -1}"#, 422),
        (r#"{"tags": ["unicorn"]}"#, 422),
    ] {
        let request = Request { headers: AS_JSON, body: body.as_bytes(), ..at(&path) };
        api.drive(operation, request, status);
    }
    let large = vec![b' '; (1 << 20) + 1];
    api.drive(operation, Request { headers: AS_JSON, body: &large, ..at(&path) }, 413);
    api.drive(operation, Request { headers: AS_TEXT, body: b"{}", ..at(&path) }, 415);
    api.drive(operation, Request { headers: AS_JSON, body: b"{}", ..at("/api/images/0/mask") }, 404);

    let operation = "POST /api/downloads";
    let formats = &api.document["components"]["schemas"]["DownloadWish"]["properties"]["format"]["enum"];
    for format in formats.as_array().unwrap().clone() {
        let wish = json!({"format": format, "images": [{"id": id}]}).to_string();
        api.drive(operation, Request { headers: AS_JSON, body: wish.as_bytes(), ..Request::default() }, 200);
    }
    for (wish, status) in [
        (json!({"format": "png", "images": []}), 422),
        (json!({"format": "png", "images": vec![json!({"id": id}); 201]}), 422),
        (json!({"format": "png", "images": [{"id": id, "crf": 11}]}), 422),
        (json!({"format": "png", "images": [{"id": "0"}]}), 404),
        (json!({"format": "exe", "images": [{"id": id}]}), 400),
        (json!({"format": "png"}), 400),
        (json!({"format": "png", "images": [[id]]}), 400),
        (json!(["png", [{"id": id}]]), 400),
        (json!(null), 400),
    ] {
        let body = wish.to_string();
        api.drive(
            operation,
            Request { headers: AS_JSON, body: body.as_bytes(), ..Request::default() },
            status,
        );
    }
    api.drive(operation, Request { headers: AS_JSON, body: &large, ..Request::default() }, 413);
    api.drive(operation, Request { headers: AS_TEXT, body: b"{}", ..Request::default() }, 415);
    api.drive("DELETE /api/images/{id}", at(&own("")), 204);

    for (method, template) in api.operations() {
        let operation = format!("{method} {template}");
        let responses = &api.document["paths"][&template][method.to_lowercase()]["responses"];
        for status in responses.as_object().unwrap().keys() {
            let is_seen = api.seen.contains(&(operation.clone(), status.clone()));
            assert!(is_seen || NOT_DRIVEN.contains(&status.as_str()), "{operation} never answered {status}");
        }
    }
    api.server.stop();
}

#[test]
fn other_methods_and_addresses_are_refused_as_documented() {
    let api = Driven::start();
    let refused = &api.document["components"]["responses"]["Refused"];
    let templates: BTreeSet<_> = api.operations().into_iter().map(|(_, path)| path).collect();
    for template in templates {
        let path = template.replace("{id}", "0").replace("{class}", "dog");
        let documented: BTreeSet<_> = api
            .operations()
            .into_iter()
            .filter(|(_, other)| *other == template)
            .map(|(method, _)| method)
            .collect();
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD", "BREW"] {
            let is_head_of_get = method == "HEAD" && documented.contains("GET");
            if documented.contains(method) || is_head_of_get {
                continue;
            }
            let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", api.server.address);
            let response = api.server.send(&head, b"");
            assert_eq!(response.status, 405, "{method} {path}");
            if method != "HEAD" {
                api.check(&response, refused, &head);
            }
            let allowed = response.header("allow").unwrap().split(',').filter(|method| *method != "HEAD");
            assert_eq!(allowed.map(str::to_owned).collect::<BTreeSet<_>>(), documented, "{path}");
        }
    }
    for path in ["/nothing", "/api", "/api/", "/api/images/", "/api/images/0/masks", "/assets/", "//", "*"] {
        let response = api.server.get(path);
        assert_eq!(response.status, 404, "{path}");
        api.check(&response, refused, path);
    }
    let long = api.server.get(&format!("/{}", "a".repeat(80_000)));
    assert!([414, 431].contains(&long.status));
    api.check(&long, refused, "a long address");
    for request in ["\r\nnonsense\r\n", "GET / HTTP/1.1\r\nHost : x\r\n", "GET / HTTP/7.0\r\n"] {
        let response = api.server.send(request, b"");
        assert_eq!(response.status, 400, "{request}");
        api.check(&response, refused, request);
        assert!(response.header("content-security-policy").is_some());
    }
    let pipelined =
        format!("GET /assets/viewer.js HTTP/1.1\r\nHost: {}\r\n\r\nnonsense\r\n", api.server.address);
    let answers = api.server.send(&pipelined, b"");
    assert_eq!(answers.status, 200);
    assert!(answers.body.ends_with(br#"{"error":"the request is not valid HTTP/1.1"}"#));
    api.server.stop();
}

#[test]
fn the_document_lists_the_formats_there_are() {
    let api = Driven::start();
    let offered = api.server.get("/api/model").json()["formats"].as_array().unwrap().clone();
    let offered: Vec<_> = offered.iter().map(|format| format["name"].clone()).collect();
    let wish = &api.document["components"]["schemas"]["DownloadWish"];
    assert_eq!(wish["properties"]["format"]["enum"], json!(offered));
    let unknown = api.server.post_json("/api/downloads", &json!({"format": "exe", "images": []})).json();
    let names: Vec<_> = offered.iter().map(|name| name.as_str().unwrap()).collect();
    assert!(unknown["error"].as_str().unwrap().contains(&names.join(", ")), "{unknown}");
    api.server.stop();
}

#[test]
fn what_breaks_a_schema_is_noticed() {
    let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
        "a": {"type": "array", "minItems": 1, "items": {"type": "integer", "maximum": 3}},
        "b": {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
    }});
    for (value, is_fine) in [
        (json!({"a": [1]}), true),
        (json!({"a": [1], "b": "xx"}), true),
        (json!({"a": [1], "b": null}), true),
        (json!({}), false),
        (json!({"a": []}), false),
        (json!({"a": [4]}), false),
        (json!({"a": [1.5]}), false),
        (json!({"a": [1], "b": "xxx"}), false),
        (json!({"a": [1], "c": 1}), false),
        (json!([]), false),
    ] {
        assert_eq!(violation(&value, &schema, &Value::Null).is_none(), is_fine, "{value}");
    }
}
