//! The API, one function per route: it checks the request, hands work to the queues and answers with JSON.
//! `assets/openapi.json` describes it; a test compares the two.

use crate::answer::{self, Answer, Refusal, bytes, json};
use crate::assets::{self, ASSETS};
use crate::bundle::Bundle;
use crate::download::{self, DownloadWish, Format};
use crate::gallery::Gallery;
use crate::guard::{OwnName, guard};
use crate::kept_image::{KeptImage, MaskWish, SUGGESTED_FROM};
use crate::limits::Limits;
use crate::memory::{Budget, HeldBytes};
use crate::names;
use crate::object::Object;
use crate::work_queue::{Place, WorkQueue};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::{MethodRouter, get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use vitpcm::{Segmenter, Supervision};
use vitpcm_data::{ImageLimits, decode_image};
use vitpcm_masks::palette::{display_colour, voc_colour};
use vitpcm_masks::{Classes, encode_label_png};

/// Largest body of a request that is not an upload.
const MAX_WISH_BYTES: usize = 1 << 20;

/// An oversized body of up to this many times its limit is read to its end, so that the client sees the refusal.
const MAX_DISCARDED: usize = 8;

/// State shared by all requests.
pub(crate) struct App {
    pub(crate) segmenter: Segmenter,
    pub(crate) model_name: String,
    pub(crate) limits: Limits,
    pub(crate) gallery: Gallery,
    /// For requests being received and responses being sent.
    pub(crate) transit: Budget,
    /// Decoding and the network: one image at a time, on all cores.
    pub(crate) uploads: WorkQueue,
    /// Masks and downloads, which do not wait for the network.
    pub(crate) masks: WorkQueue,
    /// Own threads: on the network's, a mask would wait between layers.
    pub(crate) mask_threads: rayon::ThreadPool,
}

type Shared = State<Arc<App>>;

/// The routes of the API; `/api/openapi.json` is a file ([`ASSETS`]).
fn api() -> [(&'static str, MethodRouter<Arc<App>>); 7] {
    [
        ("/api/model", get(model)),
        ("/api/images", post(take_image)),
        ("/api/images/{id}", get(image).delete(forget_image)),
        ("/api/images/{id}/view", get(view)),
        ("/api/images/{id}/scores/{class}", get(scores)),
        ("/api/images/{id}/mask", post(mask)),
        ("/api/downloads", post(make_download)),
    ]
}

/// All routes, guarded.
pub(crate) fn router(app: Arc<App>, own_name: OwnName) -> Router {
    let mut router = Router::new();
    for (path, methods) in api() {
        router = router.route(path, methods);
    }
    for (path, content_type, content) in ASSETS {
        router = router.route(path, get(move || async move { assets::answer(content_type, content) }));
    }
    router
        .fallback(async || no_such_address())
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not support this method")
        })
        .layer(axum::middleware::from_fn_with_state(own_name, guard))
        .with_state(app)
}

fn no_such_address() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "nothing at this address")
}

/// Path parameters. One that is not UTF-8 answers 404.
struct InPath<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath<T>, Refusal> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(parameters)| InPath(parameters)).map_err(|_| no_such_address())
    }
}

#[derive(Serialize)]
struct ModelInfo<'a> {
    model: &'a str,
    classes: Vec<ClassInfo<'a>>,
    /// Whether masks can be corrected by hints.
    hints: bool,
    formats: Vec<FormatInfo>,
    limits: LimitsInfo,
}

#[derive(Serialize)]
struct ClassInfo<'a> {
    name: &'a str,
    /// RGB in mask files.
    colour: [u8; 3],
    /// RGB over photographs.
    display_colour: [u8; 3],
}

#[derive(Serialize)]
struct FormatInfo {
    name: &'static str,
    title: &'static str,
    description: &'static str,
}

#[derive(Serialize)]
struct LimitsInfo {
    upload_bytes: usize,
    pixels: u64,
    images: usize,
    download_images: usize,
}

async fn model(State(app): Shared) -> Answer {
    let class = |(index, name)| {
        let label = index as u8;
        ClassInfo { name, colour: voc_colour(label), display_colour: display_colour(label) }
    };
    let names = app.segmenter.classes().names().iter().map(String::as_str);
    let limits = &app.limits;
    let info = ModelInfo {
        model: &app.model_name,
        classes: names.enumerate().map(class).collect(),
        hints: app.segmenter.supervision() == Supervision::Tags,
        formats: Format::all()
            .map(|f| FormatInfo { name: f.name(), title: f.title(), description: f.description() })
            .collect(),
        limits: LimitsInfo {
            upload_bytes: limits.upload_bytes(),
            pixels: limits.pixels(),
            images: limits.max_images,
            download_images: limits.max_export_images,
        },
    };
    json(StatusCode::OK, &info, &app.transit)
}

#[derive(Deserialize)]
struct NameParameter {
    #[serde(default)]
    name: String,
}

#[derive(Serialize)]
struct ImageInfo<'a> {
    id: &'a str,
    name: &'a str,
    width: usize,
    height: usize,
    view: ViewInfo,
    tags: Vec<TagInfo<'a>>,
}

#[derive(Serialize)]
struct ViewInfo {
    width: usize,
    height: usize,
}

#[derive(Serialize)]
struct TagInfo<'a> {
    name: &'a str,
    probability: f32,
    suggested: bool,
}

impl<'a> ImageInfo<'a> {
    fn new(id: &'a str, image: &'a KeptImage, classes: &'a Classes) -> ImageInfo<'a> {
        let (width, height) = image.size();
        let (view_width, view_height) = image.view_size();
        let tag = |(name, &probability): (&'a String, &f32)| TagInfo {
            name,
            probability,
            suggested: probability >= SUGGESTED_FROM,
        };
        let tags = classes.names().iter().zip(&image.scores.tag_probabilities).skip(1).map(tag).collect();
        let view = ViewInfo { width: view_width, height: view_height };
        ImageInfo { id, name: &image.name, width, height, view, tags }
    }
}

async fn take_image(
    State(app): Shared,
    parameter: Result<Query<NameParameter>, QueryRejection>,
    request: Request,
) -> Answer {
    let Query(parameter) = parameter.map_err(|error| Refusal::bad_request(error.body_text()))?;
    let is_image = |kind: &str| kind.starts_with("image/") || kind == "application/octet-stream";
    check_content_type(request.headers(), is_image, "an image file, as image/… or application/octet-stream")?;
    let (place, body) = received(request, app.uploads.enter(), app.limits.upload_bytes(), &app).await?;
    let worker = app.clone();
    let work = move || {
        let name = names::clean(&parameter.name);
        let limits = ImageLimits { max_pixels: worker.limits.pixels() };
        let pixels = decode_image(&name, body.as_ref(), &limits);
        let pixels = pixels.map_err(|error| Refusal::unprocessable(error.to_string()))?;
        let (scores, features) = match worker.segmenter.supervision() {
            Supervision::Tags => {
                let (scores, features) = worker.segmenter.score_with_features(&pixels)?;
                (scores, Some(features))
            }
            Supervision::Masks => (worker.segmenter.score(&pixels)?, None),
        };
        let (file, _share) = body.into_parts();
        worker.gallery.keep(KeptImage::new(name, file, pixels, scores, features)?)
    };
    let (id, image) = app.uploads.run(place, work).await?;
    let info = ImageInfo::new(&id, &image, app.segmenter.classes());
    json(StatusCode::CREATED, &info, &app.transit)
}

async fn image(State(app): Shared, InPath(id): InPath<String>) -> Answer {
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    json(StatusCode::OK, &ImageInfo::new(&id, &image, app.segmenter.classes()), &app.transit)
}

async fn forget_image(State(app): Shared, InPath(id): InPath<String>) -> Answer {
    if !app.gallery.forget(&id) {
        return Err(Refusal::no_such_image());
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

async fn view(State(app): Shared, InPath(id): InPath<String>) -> Answer {
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    bytes("image/jpeg", image.view_jpeg(), &app.transit)
}

async fn scores(State(app): Shared, InPath((id, class)): InPath<(String, String)>) -> Answer {
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    let no_such_class = || Refusal::new(StatusCode::NOT_FOUND, "the model has no class of this name");
    let class = app.segmenter.classes().index_of(&class).ok_or_else(no_such_class)?;
    bytes("image/png", image.scores_png(class).into(), &app.transit)
}

#[derive(Serialize)]
struct MaskInfo<'a> {
    width: usize,
    height: usize,
    tags: Vec<&'a str>,
    areas: Vec<Area<'a>>,
    /// Compute time, without waiting.
    milliseconds: f64,
    /// A PNG as a data URL.
    mask: String,
}

#[derive(Serialize)]
struct Area<'a> {
    class: &'a str,
    pixels: u32,
    share: f64,
}

async fn mask(State(app): Shared, InPath(id): InPath<String>, request: Request) -> Answer {
    let (place, body) = received_json(&app, request).await?;
    let worker = app.clone();
    let work = move || {
        let wish: MaskWish = parsed(body)?;
        let image = worker.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
        let started = Instant::now();
        let classes = worker.segmenter.classes();
        let made = worker.mask_threads.install(|| image.mask(&wish, classes))?;
        let mut png = Vec::new();
        encode_label_png(&mut png, &made.mask).map_err(|_| Refusal::bug())?;
        let name = |class: usize| classes.names()[class].as_str();
        let (width, height) = made.mask.size();
        let area = |(class, pixels): (usize, u32)| Area {
            class: name(class),
            pixels,
            share: f64::from(pixels) / (width * height) as f64,
        };
        let histogram = made.mask.histogram().into_iter().enumerate().take(classes.len());
        let info = MaskInfo {
            width,
            height,
            tags: made.segmentation.tags.iter().map(|&class| name(class)).collect(),
            areas: histogram.filter(|&(_, pixels)| pixels > 0).map(area).collect(),
            mask: format!("data:image/png;base64,{}", STANDARD.encode(png)),
            milliseconds: (started.elapsed().as_secs_f64() * 1e4).round() / 10.0,
        };
        json(StatusCode::OK, &info, &worker.transit)
    };
    app.masks.run(place, work).await
}

async fn make_download(State(app): Shared, request: Request) -> Answer {
    let (place, body) = received_json(&app, request).await?;
    let worker = app.clone();
    let work = move || {
        let wish: DownloadWish = parsed(body)?;
        let limit = worker.limits.max_export_images;
        if wish.images.is_empty() || wish.images.len() > limit {
            let text = format!("{} images; expected 1 to {limit}", wish.images.len());
            return Err(Refusal::unprocessable(text));
        }
        let find =
            |one: &download::ImageWish| worker.gallery.image(&one.id).ok_or_else(Refusal::no_such_image);
        let images = wish.images.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let files = Bundle::new(&worker.transit, worker.limits.download_bytes());
        let classes = worker.segmenter.classes();
        worker.mask_threads.install(|| download::make(&wish, &images, classes, files))
    };
    let file = app.masks.run(place, work).await?;
    let mut response = answer::file(file.content_type, answer::pieces(file.pieces));
    let name = HeaderValue::try_from(names::attachment(&file.name)).map_err(|_| Refusal::bug())?;
    response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}

/// The body of a request for a mask or download, with a place in the queue.
async fn received_json(app: &App, request: Request) -> Result<(Place, HeldBytes), Refusal> {
    check_content_type(request.headers(), |kind| kind == answer::JSON, answer::JSON)?;
    received(request, app.masks.enter(), MAX_WISH_BYTES, app).await
}

/// Parses a body. The result can take many times the body's memory, so parsing waits for the request's turn, and images
/// are looked up after that: a waiting request holds only its body.
fn parsed<T: DeserializeOwned>(body: HeldBytes) -> Result<T, Refusal> {
    let parsed = serde_json::from_slice(body.as_ref());
    parsed.map(|Object(wish)| wish).map_err(|error| Refusal::bad_request(error.to_string()))
}

/// Requires a content type that a form of another site cannot send without a CORS preflight.
fn check_content_type(
    headers: &HeaderMap,
    is_fine: impl Fn(&str) -> bool,
    expected: &str,
) -> Result<(), Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if is_fine(&essence) {
        return Ok(());
    }
    let text = format!("Content-Type `{essence}`; expected {expected}");
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

/// Reads a body if the queue and the memory budget have room and it is not too large. A refused body is still read and
/// discarded, within limits: a client that is writing would otherwise miss the response.
async fn received(
    request: Request,
    place: Result<Place, Refusal>,
    max_bytes: usize,
    app: &App,
) -> Result<(Place, HeldBytes), Refusal> {
    let too_large = || {
        let text = format!("the request has more than {max_bytes} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse().ok());
    let is_too_large = announced.is_some_and(|length: usize| length > max_bytes);
    let mut taken = if is_too_large { Err(too_large()) } else { place };
    if request.headers().contains_key(header::EXPECT) {
        taken = Ok(taken?); // Nothing was sent yet.
    }
    let expected = announced.unwrap_or(max_bytes);
    let mut held = HeldBytes::new(&app.transit)?;
    let mut body = request.into_body();
    let read = async {
        let mut num_bytes = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::bad_request("the request ended early"))?;
            let Some(data) = frame.data_ref() else { continue };
            num_bytes += data.len();
            if num_bytes > max_bytes.saturating_mul(MAX_DISCARDED) {
                break;
            }
            let added = match &taken {
                Ok(_) if num_bytes > max_bytes => Err(too_large()),
                Ok(_) => held.extend(data, expected),
                Err(_) => Ok(()),
            };
            if let Err(refusal) = added {
                taken = Err(refusal);
                held = HeldBytes::new(&app.transit)?;
            }
        }
        Ok((taken?, held))
    };
    let too_slow = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request took too long to arrive");
    tokio::time::timeout(app.limits.body_time, read).await.map_err(too_slow)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_openapi_document_lists_the_routes_there_are() {
        let (_, _, document) = ASSETS.into_iter().find(|(path, ..)| *path == "/api/openapi.json").unwrap();
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        let documented: BTreeSet<_> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let files = ASSETS.iter().map(|(path, ..)| *path).filter(|path| path.starts_with("/api"));
        assert_eq!(documented, api().iter().map(|(path, _)| *path).chain(files).collect());
    }
}
