// The viewer: what is known of each image, and what happens when something is pressed. Drawing is left to the stage, the
// tags and the strip; the server to the api.

import * as api from "./api.js";
import { labelsOf } from "./colours.js";
import { offerFormats, save } from "./download.js";
import { HintPen, drawHints } from "./hints.js";
import { Stage } from "./stage.js";
import { drawStrip, tellProblem } from "./strip.js";
import { drawChips, drawLegend, filterChips } from "./tags.js";

const element = (id) => document.getElementById(id);
const SESSION = "vitpcm-images";
/** Heat maps that are kept for an image. */
const MAX_HEATS = 40;

let model;
let stage;
let pen;
let palettes;
const pictures = [];
let current = null;
let nextKey = 1;
let isUploading = false;
let maskRequest = null;
let isMaskStale = false;
let pinnedHeat = null;

const say = (text) => { element("status").textContent = text; };
const classIndex = (name) => model.classes.findIndex((one) => one.name === name);
const palette = () => palettes[element("palette").value];
const colourOf = (name) => palette()[classIndex(name)] ?? [128, 128, 128];
const refinement = () => ({
  crf: element("crf").checked ? Number(element("strength").value) : null,
  fill: element("fill").checked,
});
const isRefined = ({ crf, fill }) => crf !== null || fill;
const suggestedTags = (info) => new Set(info.tags.filter((tag) => tag.suggested).map((tag) => tag.name));
const tagsWish = (picture) => (picture.isAny ? "any" : [...picture.chosen]);

// Images come in.

function addFiles(files) {
  const added = [];
  for (const file of files) {
    if (file.size > model.limits.upload_bytes) {
      tellProblem(`${file.name}: larger than ${Math.floor(model.limits.upload_bytes / 2 ** 20)} MiB`);
      continue;
    }
    const name = file.name || "pasted.png";
    added.push({ key: String(nextKey++), file, name, state: "waiting", thumbUrl: URL.createObjectURL(file) });
  }
  if (added.length === 0) return;
  pictures.push(...added);
  if (!current) choose(added[0]);
  else draw();
  uploadWaiting();
}

async function uploadWaiting() {
  if (isUploading) return;
  isUploading = true;
  for (let picture; (picture = pictures.find((one) => one.state === "waiting" && one.file));) {
    const left = pictures.filter((one) => one.state === "waiting").length;
    say(`Looking at ${picture.name}${left > 1 ? `, ${left - 1} more after it` : ""} …`);
    await upload(picture);
  }
  isUploading = false;
}

async function upload(picture) {
  try {
    takeInfo(picture, await api.upload(picture.file));
    if (!pictures.includes(picture)) return void api.forget(picture.info.id).catch(() => {});
  } catch (error) {
    picture.state = "failed";
    picture.problem = error.message;
    tellProblem(error.message);
    say(`${picture.name} could not be read.`);
  }
  if (picture === current) showCurrent();
  else draw();
}

function takeInfo(picture, info) {
  picture.info = info;
  picture.name = info.name;
  picture.state = "ready";
  picture.chosen ??= suggestedTags(info);
  picture.hints ??= [];
  picture.heats = new Map();
  if (picture.thumbUrl?.startsWith("blob:")) URL.revokeObjectURL(picture.thumbUrl);
  picture.thumbUrl = api.viewUrl(info.id);
  remember();
}

/** What was sent stays reachable when the page is loaded again. */
function remember() {
  const ready = pictures.filter((picture) => picture.state === "ready");
  const entries = ready.map(({ info, chosen, isAny, hints }) => ({ id: info.id, chosen: [...chosen], isAny: !!isAny, hints }));
  try { sessionStorage.setItem(SESSION, JSON.stringify(entries)); } catch { /* private windows may refuse */ }
}

async function recall() {
  let entries = [];
  try { entries = JSON.parse(sessionStorage.getItem(SESSION)) ?? []; } catch { /* nothing to recall */ }
  const infos = await Promise.all(entries.map((entry) => api.imageInfo(entry.id).catch(() => null)));
  infos.forEach((info, i) => {
    if (!info) return;
    const known = entries[i].chosen.filter((name) => classIndex(name) > 0);
    const hints = (entries[i].hints ?? []).filter((hint) => classIndex(hint.class) >= 0);
    const picture = { key: String(nextKey++), chosen: new Set(known), isAny: entries[i].isAny, hints };
    takeInfo(picture, info);
    pictures.push(picture);
  });
  if (pictures.length > 0 && !current) choose(pictures[0]);
}

function remove(picture) {
  const index = pictures.indexOf(picture);
  if (index < 0) return;
  pictures.splice(index, 1);
  if (picture.state === "ready") api.forget(picture.info.id).catch(() => {});
  remember();
  say(`${picture.name} removed.`);
  if (picture === current) choose(pictures[Math.min(index, pictures.length - 1)] ?? null);
  else draw();
}

function choose(picture) {
  current = picture;
  pinnedHeat = null;
  showCurrent();
}

function step(by) {
  if (pictures.length === 0) return;
  choose(pictures[(pictures.indexOf(current) + by + pictures.length) % pictures.length]);
}

// What is shown.

function draw() {
  const hasAny = pictures.length > 0;
  element("empty").hidden = hasAny;
  element("work").hidden = !hasAny;
  drawStrip(pictures, current, { choose, remove });
  const numReady = pictures.filter((picture) => picture.state === "ready").length;
  element("download").disabled = current?.state !== "ready";
  element("download-all").disabled = numReady < 2;
  element("download-all").textContent = numReady > 1 ? `All ${numReady} images` : "All images";
}

const heat = {
  async show(name) {
    const picture = current;
    heat.wanted = name;
    if (picture?.state !== "ready") return;
    try {
      let blob = picture.heats.get(name);
      if (!blob) {
        blob = await api.scores(picture.info.id, name);
        if (picture.heats.size >= MAX_HEATS) picture.heats.clear();
        picture.heats.set(name, blob);
      }
      if (heat.wanted === name && picture === current) await stage.showHeat(name, blob);
      if (heat.wanted !== name) stage.hideHeat();
    } catch { /* A heat map that does not come is no problem worth words. */ }
  },
  hide() {
    heat.wanted = pinnedHeat;
    if (pinnedHeat) heat.show(pinnedHeat);
    else stage.hideHeat();
  },
};

function pin(name) {
  pinnedHeat = pinnedHeat === name ? null : name;
  heat.hide();
  drawCurrentLegend();
}

function drawCurrentLegend() {
  drawLegend({ areas: current?.areas ?? [], colourOf, heat, pinned: pinnedHeat, pin });
}

function drawCurrentChips() {
  const { info, chosen, isAny } = current;
  drawChips({ tags: info.tags, chosen, isAny: !!isAny, colourOf, heat, toggle });
}

function showCurrent() {
  draw();
  maskRequest?.abort();
  if (!current) return;
  const isReady = current.state === "ready";
  const view = isReady ? current.info.view : { width: 4, height: 3 };
  const waitingUrl = current.state === "waiting" ? current.thumbUrl : "";
  stage.setPhoto(isReady ? api.viewUrl(current.info.id) : waitingUrl, view, current.name);
  const words = { waiting: "The network is looking at it …", failed: current.problem };
  stage.setWorking(words[current.state]);
  element("tags-panel").inert = !isReady;
  if (!isReady) {
    if (current.state === "waiting") fitToFile(current);
    for (const id of ["chips", "more-chips", "legend", "hints"]) element(id).replaceChildren();
    element("hint-buttons").hidden = true;
    element("tags-hint").textContent = "";
    element("more").hidden = true;
    return;
  }
  drawCurrentChips();
  drawCurrentHints();
  updateMask();
}

/** The shape of an image that the server has not seen yet. */
async function fitToFile(picture) {
  const image = new Image();
  image.src = picture.thumbUrl;
  try { await image.decode(); } catch { return; /* TIFF or HEIC, which most browsers do not show */ }
  if (picture !== current || picture.state !== "waiting") return;
  stage.setPhoto(picture.thumbUrl, { width: image.naturalWidth, height: image.naturalHeight }, picture.name);
}

/** Asks for the current image's mask. One request at a time: what changes meanwhile is asked for after it. */
async function updateMask() {
  isMaskStale = true;
  if (maskRequest) return;
  while (isMaskStale) {
    isMaskStale = false;
    maskRequest = new AbortController();
    await makeMask(current, maskRequest.signal);
    maskRequest = null;
  }
}

async function makeMask(picture, signal) {
  if (picture?.state !== "ready") return;
  const wish = { tags: tagsWish(picture), hints: picture.hints, size: "view" };
  const refined = refinement();
  const wantsBefore =
    element("compare").checked && isRefined(refined) && element("before-what").value === "unrefined";
  try {
    const made = await api.mask(picture.info.id, { ...wish, ...refined }, signal);
    const mask = await labelsOf(made.mask);
    const before = wantsBefore ? await labelsOf((await api.mask(picture.info.id, wish, signal)).mask) : null;
    if (signal.aborted || picture !== current) return;
    picture.areas = made.areas;
    stage.setMask(mask);
    stage.setBefore(before);
    drawCurrentLegend();
    const tags = picture.isAny ? "any tag" : made.tags.length > 0 ? made.tags.join(", ") : "no tag";
    const { width, height } = picture.info;
    const edges = refined.crf === null ? "" : `, refined ×${refined.crf.toFixed(1)}`;
    const areas = refined.fill ? ", filled" : "";
    const points = picture.hints.length;
    const corrected = points === 0 ? "" : points === 1 ? ", 1 correction" : `, ${points} corrections`;
    say(`${picture.name} · ${width} × ${height} · ${tags}${corrected}${edges}${areas} · mask in ${Math.round(made.milliseconds)} ms`);
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    if (error.status === 404) sendAgain(picture);
    else tellProblem(error.message);
  }
}

/** The server keeps so many images; one that had to go is sent again, where this page still has its file. */
function sendAgain(picture) {
  if (picture.file) {
    picture.state = "waiting";
    picture.thumbUrl = URL.createObjectURL(picture.file);
    showCurrent();
    uploadWaiting();
  } else {
    tellProblem(`${picture.name} is no longer kept by the server; add it again.`);
    remove(picture);
  }
}

// What is pressed.

function toggle(name) {
  const { chosen } = current;
  current.isAny = false;
  if (!chosen.delete(name)) chosen.add(name);
  tagsChanged();
}

function setTags(names, isAny = false) {
  if (current?.state !== "ready") return;
  current.chosen = new Set(names);
  current.isAny = isAny;
  tagsChanged();
}

function tagsChanged() {
  remember();
  drawCurrentChips();
  updateMask();
}

// Corrections.

function drawCurrentHints(drawn = null) {
  const { hints } = current;
  const isOn = element("correct").checked;
  drawHints(drawn ? [...hints, { class: element("hint-class").value, line: drawn }] : hints, colourOf);
  element("hint-choice").hidden = !isOn;
  element("hint-buttons").hidden = hints.length === 0;
  element("hints-hint").hidden = !isOn;
  const first = tagsWish(current)[0];
  const select = element("hint-class");
  if (select.dataset.of !== current.key) {
    select.dataset.of = current.key;
    select.value = classIndex(first) > 0 ? first : model.classes[0].name;
  }
}

function addHint(line) {
  if (current?.state !== "ready") return;
  current.hints.push({ class: element("hint-class").value, line });
  hintsChanged();
}

function hintsChanged() {
  remember();
  drawCurrentHints();
  updateMask();
}

function undoHint() {
  if (current?.hints?.pop()) hintsChanged();
}

function clearHints() {
  current.hints = [];
  hintsChanged();
}

function correctChanged() {
  pen.turn(element("correct").checked);
  if (current?.state === "ready") drawCurrentHints();
}

const setSuggested = () => { if (current?.info) setTags(suggestedTags(current.info)); };
const setNone = () => setTags([]);
const setAny = () => { if (current?.info) setTags(current.chosen, !current.isAny); };

function refinementChanged() {
  element("strength").disabled = !element("crf").checked;
  element("strength-value").textContent = Number(element("strength").value).toFixed(1);
  element("before-choice").hidden = !(isRefined(refinement()) && element("compare").checked);
  updateMask();
}

function compareChanged() {
  stage.setCompare(element("compare").checked);
  refinementChanged();
}

function setShow(value) {
  document.querySelector(`input[name="show"][value="${value}"]`).checked = true;
  stage.setShow(value);
  element("opacity").disabled = value !== "overlay";
}

function paletteChanged() {
  stage.setPalette(palette());
  if (current?.state !== "ready") return;
  drawCurrentChips();
  drawCurrentHints();
  drawCurrentLegend();
}

async function saveThese(chosen) {
  const ready = chosen.filter((picture) => picture?.state === "ready");
  if (ready.length === 0) return;
  if (ready.length > model.limits.download_images) {
    return tellProblem(`At most ${model.limits.download_images} images in one download.`);
  }
  const buttons = [element("download"), element("download-all")];
  buttons.forEach((button) => { button.disabled = true; });
  say("Making the download …");
  try {
    const wish = (picture) => ({ id: picture.info.id, tags: tagsWish(picture), hints: picture.hints, ...refinement() });
    const name = await save(ready.map(wish));
    say(`${name} saved.`);
  } catch (error) {
    tellProblem(error.message);
  }
  draw();
}

function click(id) { element(id).click(); }

function nudge(id, by) {
  const input = element(id);
  if (input.disabled) return;
  input.value = Number(input.value) + by;
  input.dispatchEvent(new Event("input"));
}

const SHORTCUTS = {
  o: () => click("files"), s: setSuggested, n: setNone, a: setAny,
  k: () => { if (model.hints) click("correct"); }, z: undoHint,
  c: () => click("crf"), f: () => click("fill"), b: () => click("compare"),
  v: () => {
    const order = ["overlay", "mask", "photo"];
    setShow(order[(order.indexOf(document.querySelector('input[name="show"]:checked').value) + 1) % 3]);
  },
  d: () => saveThese([current]), t: () => window.toggleTheme(), "?": () => element("shortcuts").showModal(),
  "[": () => nudge("opacity", -10), "]": () => nudge("opacity", 10),
  "-": () => nudge("strength", -0.1), "+": () => nudge("strength", 0.1), "=": () => nudge("strength", 0.1),
  ",": () => stage.moveDivider(-5), ".": () => stage.moveDivider(5),
  ArrowLeft: () => step(-1), ArrowRight: () => step(1), Delete: () => remove(current),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || element("shortcuts").open) return;
  // Fields keep their keys: arrows move a slider, letters are typed.
  const field = event.target.closest?.("input, select, textarea");
  if (field && (field.type !== "checkbox" && !(field.type === "range" && event.key.length === 1))) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (/^[1-9]$/.test(key)) {
    element("chips").children[Number(key) - 1]?.click();
  } else if (Object.hasOwn(SHORTCUTS, key)) {
    SHORTCUTS[key]();
  } else {
    return;
  }
  event.preventDefault();
}

const imagesOf = (transfer) => [...(transfer?.files ?? [])];

function listen() {
  const on = (id, event, work) => element(id).addEventListener(event, work);
  on("add", "click", () => click("files"));
  on("choose", "click", () => click("files"));
  on("files", "change", (event) => {
    addFiles([...event.target.files]);
    event.target.value = "";
  });
  on("help", "click", () => element("shortcuts").showModal());
  on("suggested", "click", setSuggested);
  on("none", "click", setNone);
  on("any", "click", setAny);
  on("find", "input", filterChips);
  on("palette", "change", paletteChanged);
  on("opacity", "input", (event) => stage.setOpacity(event.target.value / 100));
  on("compare", "change", compareChanged);
  on("before-what", "change", updateMask);
  on("crf", "change", refinementChanged);
  on("fill", "change", refinementChanged);
  on("correct", "change", correctChanged);
  on("undo-hint", "click", undoHint);
  on("clear-hints", "click", clearHints);
  on("strength", "input", refinementChanged);
  on("download", "click", () => saveThese([current]));
  on("download-all", "click", () => saveThese(pictures));
  for (const input of document.querySelectorAll('input[name="show"]')) {
    input.addEventListener("change", () => setShow(input.value));
  }
  addEventListener("keydown", onKey);
  addEventListener("paste", (event) => addFiles(imagesOf(event.clipboardData)));
  // Pictures of the page itself are not to be dragged; they would come back as files.
  addEventListener("dragstart", (event) => event.preventDefault());
  let depth = 0;
  const isFiles = (event) => event.dataTransfer?.types.includes("Files");
  const showDrop = () => { element("drop").hidden = depth <= 0; };
  addEventListener("dragenter", (event) => { if (isFiles(event)) { depth++; showDrop(); } });
  addEventListener("dragleave", (event) => { if (isFiles(event)) { depth--; showDrop(); } });
  addEventListener("dragover", (event) => { if (isFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    depth = 0;
    showDrop();
    if (!isFiles(event)) return;
    event.preventDefault();
    addFiles(imagesOf(event.dataTransfer));
  });
}

async function start() {
  try {
    model = await api.model();
  } catch (error) {
    return tellProblem(error.message);
  }
  const numClasses = model.classes.length - 1;
  element("model").textContent = `${model.model} · ${numClasses} ${numClasses === 1 ? "class" : "classes"}`;
  palettes = { vivid: model.classes.map((one) => one.display_colour), voc: model.classes.map((one) => one.colour) };
  stage = new Stage(model.classes);
  stage.setPalette(palette());
  pen = new HintPen(addHint, (line) => { if (current?.state === "ready") drawCurrentHints(line); });
  element("hint-class").replaceChildren(...model.classes.map(({ name }) => new Option(name, name)));
  element("hints-panel").hidden = !model.hints;
  offerFormats(model.formats);
  listen();
  draw();
  await recall();
}

start();
