//! One walk over a data set's folder: finds images and masks, and resolves names in annotations to files. Nothing
//! outside the folder is looked up; links inside it are followed, and loops reported.

use crate::image_file::{head_of, is_image_head};
use crate::{Problem, ProblemKind};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// Extensions of images, including unsupported ones, which are reported rather than skipped.
const IMAGE_EXTENSIONS: [&str; 16] = [
    "jpg", "jpeg", "jpe", "jfif", "png", "webp", "tif", "tiff", "bmp", "dib", "gif", "heic", "heif", "hif",
    "avif", "jp2",
];

/// The usual folder of images; it is not part of their names.
pub(crate) const IMAGES: &str = "images";

/// The folder whose files are masks.
const MASKS: &str = "masks";

/// A file below the root.
pub(crate) struct IndexedFile {
    /// Its path, including the root.
    pub(crate) path: PathBuf,
    /// Its path below the root, with `/` as separator; invalid UTF-8 replaced.
    pub(crate) relative: String,
}

/// An image to work on, from any data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its path below the folder it was found in, with `/` as separator and the extension; invalid UTF-8 replaced.
    pub name: String,
}

/// All images below a folder, sorted by path, and the problems; or the single file. Of a VOC devkit, only `JPEGImages`
/// counts; folders named `masks` are skipped.
pub fn find_images(path: &Path) -> (Vec<ImageFile>, Vec<Problem>) {
    if !path.is_dir() {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        return (vec![ImageFile { path: path.to_path_buf(), name }], Vec::new());
    }
    let devkit = path.join(crate::voc::IMAGE_FOLDER);
    let index = FileIndex::walk(if devkit.is_dir() { &devkit } else { path });
    let images = index.images.into_iter().map(|file| ImageFile { path: file.path, name: file.relative });
    (images.collect(), index.problems)
}

/// All images and masks below a root.
pub(crate) struct FileIndex {
    pub(crate) root: PathBuf,
    absolute_root: Option<String>,
    /// The tag file's folder (absolute), if the images were not found by walking it.
    tag_folder: Option<PathBuf>,
    /// Sorted by path.
    pub(crate) images: Vec<IndexedFile>,
    /// Files in folders named `masks`, sorted by path.
    pub(crate) masks: Vec<IndexedFile>,
    pub(crate) problems: Vec<Problem>,
    /// Relative to the root, as in [`IndexedFile::relative`].
    folders: HashSet<String>,
    /// In lower case.
    by_file_name: HashMap<String, Vec<usize>>,
    /// Without extension, in lower case.
    by_stem: HashMap<String, Vec<usize>>,
    mask_by_key: HashMap<String, usize>,
}

/// Why a name resolves to no image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    Missing,
    Folder,
    Outside,
    /// The file exists but is not among the given images.
    Elsewhere,
    Ambiguous(Vec<String>),
}

/// How much of a name matches the image it was resolved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Whole,
    /// Only its end: the rest is a path on another machine or in another place.
    End,
}

impl Unresolved {
    /// How this is reported.
    pub(crate) fn kind(&self) -> ProblemKind {
        match self {
            Unresolved::Missing | Unresolved::Folder | Unresolved::Elsewhere => ProblemKind::TagWithoutImage,
            Unresolved::Outside => ProblemKind::OutsideRoot,
            Unresolved::Ambiguous(_) => ProblemKind::AmbiguousName,
        }
    }
}

/// Folders of an address that are compared with an image's path. Deeper than any data set; without a bound, lookup time
/// would be quadratic in the length.
const MAX_DEPTH: usize = 64;

/// Longer names are no paths and are not stored for comparison.
const MAX_PATH_BYTES: usize = 4096;

impl FileIndex {
    fn empty(root: &Path) -> Self {
        FileIndex {
            root: root.to_path_buf(),
            absolute_root: absolute_root(root),
            tag_folder: None,
            images: Vec::new(),
            masks: Vec::new(),
            problems: Vec::new(),
            folders: HashSet::new(),
            by_file_name: HashMap::new(),
            by_stem: HashMap::new(),
            mask_by_key: HashMap::new(),
        }
    }

    /// From images that are already known, for a tag file in `tag_folder`.
    pub(crate) fn of_images(tag_folder: &Path, images: &[ImageFile]) -> Self {
        let mut index = FileIndex::empty(tag_folder);
        index.tag_folder = std::path::absolute(tag_folder).map(|folder| lexical(&folder)).ok();
        let indexed =
            |image: &ImageFile| IndexedFile { path: image.path.clone(), relative: image.name.clone() };
        index.images = images.iter().map(indexed).collect();
        index.build_maps();
        index
    }

    /// Walks a folder. Unreadable folders are reported as problems.
    pub(crate) fn walk(root: &Path) -> Self {
        let mut index = FileIndex::empty(root);
        // A limit in addition to walkdir's loop detection: no data set nests folders this deep.
        let walk = WalkDir::new(root).follow_links(true).max_depth(64).sort_by_file_name();
        for item in walk.into_iter().filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry.file_name()))
        {
            match item {
                Ok(entry) => index.add(&entry),
                Err(error) => index.problems.push(problem_of_walk(root, &error)),
            }
        }
        index.build_maps();
        index
    }

    fn add(&mut self, entry: &DirEntry) {
        let is_folder = entry.file_type().is_dir();
        if !(is_folder || entry.file_type().is_file() && is_image(entry.path())) {
            return;
        }
        let path = entry.path().to_path_buf();
        let below = path.strip_prefix(&self.root).unwrap_or(&path);
        let relative = below.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        if is_folder {
            self.folders.insert(relative);
            return;
        }
        let in_masks = below.parent().is_some_and(|folder| folder.iter().any(|part| part == MASKS));
        let files = if in_masks { &mut self.masks } else { &mut self.images };
        files.push(IndexedFile { path, relative });
    }

    fn build_maps(&mut self) {
        for (i, file) in self.images.iter().enumerate() {
            let name = file_name(&file.relative);
            self.by_file_name.entry(name.to_lowercase()).or_default().push(i);
            self.by_stem.entry(without_extension(name).to_lowercase()).or_default().push(i);
        }
        for (i, file) in self.masks.iter().enumerate() {
            self.mask_by_key.insert(without_folder(without_extension(&file.relative), MASKS), i);
        }
    }

    /// Resolves a name in an annotation: a path below the root or below one of `folders` (in this order), with or
    /// without extension; otherwise the only image whose path ends in the name.
    pub(crate) fn resolve(&self, name: &str, folders: &[&str]) -> Result<usize, Unresolved> {
        let with_extension = |i: usize| self.images[i].relative.as_str();
        // On Unix a backslash may be part of a file name, so the unchanged name is tried first.
        let of_this_name = self.by_file_name.get(&name.to_lowercase()).into_iter().flatten();
        let mut of_this_name = of_this_name.filter(|&&i| file_name(with_extension(i)) == name);
        if let (Some(&only), None) = (of_this_name.next(), of_this_name.next()) {
            return Ok(only);
        }
        let wanted = self.below_root(name).ok_or(Unresolved::Outside)?;
        if wanted.is_empty() {
            return Err(Unresolved::Missing);
        }
        let bare = |i: usize| without_extension(&self.images[i].relative);
        let key = file_name(&wanted).to_lowercase();
        let found = choose(self.by_file_name.get(&key), &wanted, folders, with_extension)
            .or_else(|| choose(self.by_stem.get(&key), &wanted, folders, bare));
        match found.as_deref() {
            Some(&[only]) => Ok(only),
            Some(several) => {
                Err(Unresolved::Ambiguous(several.iter().map(|&i| with_extension(i).to_string()).collect()))
            }
            None => {
                let is_folder = self.folders.contains(&wanted)
                    || folders.iter().any(|folder| self.folders.contains(&format!("{folder}/{wanted}")));
                Err(if is_folder { Unresolved::Folder } else { Unresolved::Missing })
            }
        }
    }

    /// Resolves a row of a tag file: a path as for [`FileIndex::resolve`], or relative to the tag file; otherwise the
    /// only image whose path has the same end. Two equally good matches are ambiguous.
    pub(crate) fn resolve_row(&self, name: &str) -> Result<(usize, Fit), Unresolved> {
        let beside =
            self.tag_folder.as_deref().map(|folder| lexical(&folder.join(name.trim().replace('\\', "/"))));
        let image_beside = beside.as_deref().and_then(|path| self.image_at(path));
        let other_file = || beside.as_deref().filter(|path| image_beside.is_none() && path.is_file());
        let shown = |image: usize| self.images[image].path.display().to_string();
        match (image_beside, self.resolve(name, &[IMAGES])) {
            (Some(image), Ok(other)) if image != other => {
                Err(Unresolved::Ambiguous(vec![shown(image), shown(other)]))
            }
            (Some(image), _) => Ok((image, Fit::Whole)),
            (None, Ok(image)) => match other_file() {
                Some(path) if !is_same_file(path, &self.images[image].path) => {
                    let other = self.root.join(name.trim()).display().to_string();
                    Err(Unresolved::Ambiguous(vec![other, shown(image)]))
                }
                _ => Ok((image, Fit::Whole)),
            },
            (None, Err(Unresolved::Missing | Unresolved::Outside)) if other_file().is_some() => {
                Err(Unresolved::Elsewhere)
            }
            (None, Err(Unresolved::Outside)) if !is_absolute(&name.trim().replace('\\', "/")) => {
                Err(Unresolved::Outside)
            }
            (None, Err(why)) if name.len() > MAX_PATH_BYTES => Err(why),
            (None, Err(why @ (Unresolved::Missing | Unresolved::Outside))) => match self.resolve_tail(name) {
                Err(Unresolved::Missing | Unresolved::Outside) => Err(why),
                found => found.map(|image| (image, Fit::End)),
            },
            (None, Err(why)) => Err(why),
        }
    }

    /// The image at an absolute path, with or without extension, with exact case if possible.
    fn image_at(&self, path: &Path) -> Option<usize> {
        let key = path.file_name()?.to_string_lossy().to_lowercase();
        let candidates =
            || self.by_file_name.get(&key).into_iter().chain(self.by_stem.get(&key)).flatten().copied();
        let lower = |path: &Path| path.to_string_lossy().to_lowercase();
        let is_it = |i: usize, is_same: &dyn Fn(&Path) -> bool| {
            let image = std::path::absolute(&self.images[i].path).map(|image| lexical(&image));
            image.is_ok_and(|image| is_same(&image) || is_same(&image.with_extension("")))
        };
        let folded = lower(path);
        let exact = candidates().find(|&i| is_it(i, &|image| image == path));
        exact.or_else(|| candidates().find(|&i| is_it(i, &|image| lower(image) == folded)))
    }

    /// Resolves an address from another machine, such as an upload path or URL: the longest tail of it that is the tail
    /// of an image's path.
    pub(crate) fn resolve_tail(&self, address: &str) -> Result<usize, Unresolved> {
        let forward = address.replace('\\', "/");
        let parts: Vec<&str> = forward.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect();
        let mut outcome = Err(Unresolved::Missing);
        for start in parts.len().saturating_sub(MAX_DEPTH)..parts.len() {
            match self.resolve(&parts[start..].join("/"), &[IMAGES]) {
                Ok(image) => return Ok(image),
                Err(Unresolved::Missing) => {}
                Err(other) => outcome = Err(other),
            }
        }
        outcome
    }

    /// The image of this name but for its extension.
    pub(crate) fn of_other_extension(&self, name: &str) -> Option<usize> {
        let stem = without_extension(name.trim());
        (stem != name.trim()).then(|| self.resolve_row(stem).ok()).flatten().map(|(image, _)| image)
    }

    /// A name as a path below the root, without `.` and `..`; `None` if it leads outside.
    fn below_root(&self, name: &str) -> Option<String> {
        let forward = name.trim().replace('\\', "/");
        let relative = if is_absolute(&forward) {
            let root = self.absolute_root.as_deref()?;
            forward.strip_prefix(root).filter(|rest| rest.starts_with('/'))?
        } else {
            &forward
        };
        let mut parts = Vec::new();
        for part in relative.split('/') {
            match part {
                "" | "." => {}
                ".." => _ = parts.pop()?,
                part => parts.push(part),
            }
        }
        Some(parts.join("/"))
    }

    /// The mask of an image: the same path with `masks` in place of `images`, or its bare name in `masks`.
    pub(crate) fn mask_of(&self, relative: &str) -> Option<usize> {
        let key = without_folder(without_extension(relative), IMAGES);
        self.mask_by_key.get(&key).or_else(|| self.mask_by_key.get(file_name(&key))).copied()
    }
}

/// The absolute root as annotations may spell it, with `/` as separator and without a trailing one.
fn absolute_root(root: &Path) -> Option<String> {
    let absolute = std::path::absolute(root).ok()?.to_string_lossy().replace('\\', "/");
    Some(absolute.trim_end_matches('/').to_string())
}

/// Whether a path with `/` separators starts at a root or a drive.
fn is_absolute(forward: &str) -> bool {
    forward.starts_with('/') || forward.get(1..3) == Some(":/")
}

/// A path without `.` and `..`, resolved lexically.
fn lexical(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, part| {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = whole.pop(),
            part => whole.push(part),
        }
        whole
    })
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The best candidates with the right file name: an exact path, else every path that ends in the name; then the same
/// ignoring case.
fn choose<'a>(
    candidates: Option<&Vec<usize>>,
    wanted: &str,
    folders: &[&str],
    path_of: impl Fn(usize) -> &'a str,
) -> Option<Vec<usize>> {
    let candidates = candidates?;
    let those = |is_it: &dyn Fn(&str) -> bool| {
        let found: Vec<usize> = candidates.iter().copied().filter(|&i| is_it(path_of(i))).collect();
        (!found.is_empty()).then_some(found)
    };
    let exact_in = |folder: &str| {
        let path = if folder.is_empty() { wanted.to_string() } else { format!("{folder}/{wanted}") };
        those(&|it| it == path)
    };
    let tail = format!("/{wanted}");
    let (folded, folded_tail) = (wanted.to_lowercase(), tail.to_lowercase());
    let any_case = |it: &str| {
        let it = it.to_lowercase();
        it == folded || it.ends_with(&folded_tail)
    };
    let exact = folders.iter().chain([&""]).find_map(|folder| exact_in(folder));
    exact.or_else(|| those(&|it| it.ends_with(&tail))).or_else(|| those(&any_case))
}

/// The part after the last `/`.
pub(crate) fn file_name(relative: &str) -> &str {
    relative.rsplit('/').next().unwrap_or(relative)
}

/// A path without the extension; a leading dot is no extension.
pub(crate) fn without_extension(relative: &str) -> &str {
    let name = file_name(relative);
    match name.rfind('.') {
        Some(dot) if dot > 0 => &relative[..relative.len() - (name.len() - dot)],
        _ => relative,
    }
}

/// A path without the first folder of this name.
pub(crate) fn without_folder(relative: &str, folder: &str) -> String {
    let mut parts: Vec<&str> = relative.split('/').collect();
    let folders = parts.len() - 1;
    if let Some(i) = parts[..folders].iter().position(|part| *part == folder) {
        parts.remove(i);
    }
    parts.join("/")
}

/// Hidden files, and those that macOS adds to archives.
fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == "__MACOSX"
}

/// By extension or, without one, by the first bytes.
fn is_image(path: &Path) -> bool {
    match path.extension() {
        Some(extension) => has_image_extension(extension),
        None => {
            File::open(path).and_then(|mut file| head_of(&mut file)).is_ok_and(|head| is_image_head(&head))
        }
    }
}

pub(crate) fn has_image_extension(extension: &OsStr) -> bool {
    IMAGE_EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

fn problem_of_walk(root: &Path, error: &walkdir::Error) -> Problem {
    let path = error.path().unwrap_or(root);
    if let Some(ancestor) = error.loop_ancestor() {
        let detail = format!("leads back to {}; not followed", ancestor.display());
        return Problem::new(ProblemKind::SymlinkLoop, path, detail);
    }
    // ELOOP on Linux and macOS: a link to itself or a cycle of links.
    if matches!(error.io_error().and_then(std::io::Error::raw_os_error), Some(40 | 62)) {
        return Problem::new(ProblemKind::SymlinkLoop, path, "leads back to itself; not followed");
    }
    let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let reason = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
    let detail = if is_link { format!("a dangling link: {reason}") } else { reason };
    let kind = match path.extension() {
        Some(extension) if has_image_extension(extension) => ProblemKind::UnreadableImage,
        _ => ProblemKind::UnreadableFolder,
    };
    Problem::new(kind, path, detail)
}

/// Whether some subfolder other than `masks` contains an image at any depth.
pub(crate) fn has_images_in_folders(root: &Path) -> bool {
    let walk = WalkDir::new(root).follow_links(true).min_depth(1).max_depth(64);
    let is_wanted = |entry: &DirEntry| !is_hidden(entry.file_name()) && entry.file_name() != MASKS;
    let mut entries = walk.into_iter().filter_entry(is_wanted).filter_map(Result::ok);
    entries.any(|entry| entry.depth() > 1 && entry.file_type().is_file() && is_image(entry.path()))
}
