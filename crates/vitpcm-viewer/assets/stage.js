// The stage: the photograph, over it the mask (or what it was before), a heat map, the line between before and after.

import { pixelsOf, viridis } from "./colours.js";

const element = (id) => document.getElementById(id);
const IGNORE = 255;

export class Stage {
  #classes;
  #palette = [];
  #size = { width: 1, height: 1 };
  #mask = null;
  #before = null;
  #show = "overlay";
  #opacity = 0.5;
  #compare = false;
  #position = 50;

  constructor(classes) {
    this.#classes = classes;
    this.stage = element("stage");
    this.photo = element("photo");
    this.divider = element("divider");
    new ResizeObserver(() => this.#fit()).observe(this.stage.parentElement);
    this.#listenToDivider();
    this.#listenToPointer();
  }

  /** Shows another image; `url` may be empty while it is on its way. */
  setPhoto(url, size, name) {
    this.#size = size;
    this.#mask = this.#before = null;
    this.photo.alt = name;
    if (url) this.photo.src = url;
    else this.photo.removeAttribute("src");
    this.hideHeat();
    this.#fit();
    this.#draw();
  }

  setMask(mask) { this.#mask = mask; this.#draw(); }
  setBefore(mask) { this.#before = mask; this.#draw(); }
  setPalette(palette) { this.#palette = palette; this.#draw(); }
  setShow(show) { this.#show = show; this.#draw(); }
  setOpacity(opacity) { this.#opacity = opacity; this.#draw(); }

  setCompare(compare) {
    this.#compare = compare;
    this.divider.hidden = !compare;
    this.#clip();
  }

  moveDivider(by) { this.#setPosition(this.#position + by); }

  setWorking(text) {
    element("working").hidden = !text;
    element("working-text").textContent = text ?? "";
  }

  /** A class's scores over the image, from the grey PNG of its grid. */
  async showHeat(className, blob) {
    const { width, height, data } = await pixelsOf(blob);
    for (let i = 0; i < data.length; i += 4) {
      const value = data[i];
      const [red, green, blue] = viridis[value];
      data[i] = red; data[i + 1] = green; data[i + 2] = blue; data[i + 3] = 200;
    }
    const grid = new OffscreenCanvas(width, height);
    grid.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
    const canvas = element("heat");
    canvas.width = this.#size.width;
    canvas.height = this.#size.height;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(grid, 0, 0, canvas.width, canvas.height);
    canvas.classList.add("shown");
    element("heat-name").textContent = className;
    element("heat-caption").hidden = false;
  }

  hideHeat() {
    element("heat").classList.remove("shown");
    element("heat-caption").hidden = true;
  }

  /** The largest size of the image's shape that its room holds. */
  #fit() {
    const room = this.stage.parentElement;
    const { width, height } = this.#size;
    const isColumn = matchMedia("(max-width: 900px)").matches;
    const roomHeight = isColumn ? 0.62 * innerHeight : room.clientHeight;
    const scale = Math.min(room.clientWidth / width, roomHeight / height);
    // Small images are enlarged, but not to mush.
    const shown = Math.min(scale, 3);
    this.stage.style.width = `${Math.round(width * shown)}px`;
    this.stage.style.height = `${Math.round(height * shown)}px`;
  }

  #draw() {
    const isPhoto = this.#show === "photo";
    paint(element("mask"), isPhoto ? null : this.#mask, this.#palette, this.#show, this.#opacity);
    paint(element("before"), isPhoto ? null : this.#before, this.#palette, this.#show, this.#opacity);
    this.#clip();
  }

  #clip() {
    const left = this.#compare ? this.#position : 0;
    element("mask").style.clipPath = `inset(0 0 0 ${left}%)`;
    element("before").style.clipPath = `inset(0 ${100 - left}% 0 0)`;
    this.divider.style.left = `${this.#position}%`;
    this.divider.setAttribute("aria-valuenow", Math.round(this.#position));
  }

  #setPosition(position) {
    this.#position = Math.min(100, Math.max(0, position));
    this.#clip();
  }

  #listenToDivider() {
    const follow = (event) => {
      const { left, width } = this.stage.getBoundingClientRect();
      this.#setPosition((100 * (event.clientX - left)) / width);
    };
    this.divider.addEventListener("pointerdown", (event) => {
      this.divider.setPointerCapture(event.pointerId);
      follow(event);
    });
    this.divider.addEventListener("pointermove", (event) => {
      if (this.divider.hasPointerCapture(event.pointerId)) follow(event);
    });
    this.divider.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -2, ArrowRight: 2, PageDown: -10, PageUp: 10, Home: -100, End: 100 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      event.stopPropagation();
      this.moveDivider(steps[event.key]);
    });
  }

  #listenToPointer() {
    const output = element("under-pointer");
    this.stage.addEventListener("pointermove", (event) => {
      const { left, top, width, height } = this.stage.getBoundingClientRect();
      const x = event.clientX - left, y = event.clientY - top;
      const name = event.pointerType === "mouse" && this.#classAt(x / width, y / height);
      output.hidden = !name;
      if (!name) return;
      output.textContent = name;
      const room = width - output.offsetWidth - 4;
      output.style.translate = `${Math.max(4, Math.min(x + 14, room))}px ${Math.max(4, Math.min(y + 18, height - 34))}px`;
    });
    this.stage.addEventListener("pointerleave", () => { output.hidden = true; });
  }

  #classAt(x, y) {
    if (!this.#mask || this.#show === "photo" || (this.#compare && 100 * x < this.#position)) return "";
    const { width, height, labels } = this.#mask;
    const column = Math.min(width - 1, Math.max(0, Math.floor(x * width)));
    const row = Math.min(height - 1, Math.max(0, Math.floor(y * height)));
    return this.#classes[labels[row * width + column]]?.name ?? "";
  }
}

/** Draws a mask: tinted regions with full outlines over the photograph, or flat colours. */
function paint(canvas, mask, palette, show, opacity) {
  if (!mask || palette.length === 0) {
    canvas.width = canvas.height = 1;
    return;
  }
  const { width, height, labels } = mask;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  const pixels = new Uint32Array(picture.data.buffer);
  const packed = (colour, alpha) => ((alpha << 24) | (colour[2] << 16) | (colour[1] << 8) | colour[0]) >>> 0;
  const isMask = show === "mask";
  const inside = new Uint32Array(256), edge = new Uint32Array(256);
  palette.forEach((colour, label) => {
    inside[label] = packed(colour, isMask ? 255 : Math.round(255 * opacity));
    edge[label] = packed(colour, 255);
  });
  inside[0] = edge[0] = isMask ? packed([16, 18, 17], 255) : 0;
  inside[IGNORE] = edge[IGNORE] = packed([255, 255, 255], 255);
  if (!isMask && opacity === 0) edge.fill(0);
  // Outlines about two pixels of the screen wide, whatever the image's size.
  const reach = Math.max(1, Math.round(Math.max(width, height) / 640));
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      const label = labels[i];
      const isEdge = label !== 0 && (
        (x >= reach && labels[i - reach] !== label) || (x + reach < width && labels[i + reach] !== label) ||
        (y >= reach && labels[i - reach * width] !== label) || (y + reach < height && labels[i + reach * width] !== label));
      pixels[i] = isEdge ? edge[label] : inside[label];
    }
  }
  context.putImageData(picture, 0, 0);
}
