// Corrections: points and lines on the image that say what is there, by pointer or keyboard. Places are fractions of the
// image's width and height.

import { css } from "./colours.js";

const element = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
/** A line gets a new corner when the pointer has moved by this many pixels. */
const CORNER = 6;
const clamp = (value) => Math.min(1, Math.max(0, value));

/** Draws hints over the image: dots and lines in their class's colour with a light rim. */
export function drawHints(hints, colourOf) {
  const line = ({ class: name, line: points }, isRim) => {
    const node = document.createElementNS(SVG, "polyline");
    // A line of no length has round ends: a dot.
    const corners = points.length > 1 ? points : [points[0], points[0]];
    node.setAttribute("points", corners.map(([x, y]) => `${x},${y}`).join(" "));
    if (isRim) node.classList.add("rim");
    else node.style.stroke = css(colourOf(name));
    return node;
  };
  element("hints").replaceChildren(...hints.flatMap((hint) => [line(hint, true), line(hint, false)]));
}

/** Calls `add(line)` for every point or line that is drawn on the stage while corrections are on. */
export class HintPen {
  #isOn = false;
  #line = null;
  #aim = [0.5, 0.5];

  constructor(add, preview) {
    this.stage = element("stage");
    this.aim = element("aim");
    this.add = add;
    this.preview = preview;
    this.stage.addEventListener("pointerdown", (event) => this.#begin(event));
    this.stage.addEventListener("pointermove", (event) => this.#draw(event));
    this.stage.addEventListener("pointerup", () => this.#end());
    this.stage.addEventListener("pointercancel", () => { this.#line = null; this.preview(null); });
    this.stage.addEventListener("keydown", (event) => this.#onKey(event));
  }

  turn(isOn) {
    this.#isOn = isOn;
    this.#line = null;
    this.stage.classList.toggle("correcting", isOn);
    // With the keyboard: a cross that the arrows move, placed by Enter.
    if (isOn) this.stage.tabIndex = 0;
    else this.stage.removeAttribute("tabindex");
    this.#showAim();
  }

  #place({ clientX, clientY }) {
    const { left, top, width, height } = this.stage.getBoundingClientRect();
    return [clamp((clientX - left) / width), clamp((clientY - top) / height)];
  }

  #begin(event) {
    if (!this.#isOn || event.button !== 0 || event.target.closest(".divider")) return;
    event.preventDefault();
    this.stage.setPointerCapture(event.pointerId);
    this.#line = [this.#place(event)];
    this.preview(this.#line);
  }

  #draw(event) {
    if (!this.#line) return;
    const place = this.#place(event);
    const { width, height } = this.stage.getBoundingClientRect();
    const [x, y] = this.#line.at(-1);
    if (Math.hypot((place[0] - x) * width, (place[1] - y) * height) < CORNER) return;
    this.#line.push(place);
    this.preview(this.#line);
  }

  #end() {
    const line = this.#line;
    this.#line = null;
    if (line) this.add(line);
  }

  #onKey(event) {
    if (!this.#isOn || event.target !== this.stage) return;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (step) {
      const by = event.shiftKey ? 0.1 : 0.01;
      this.#aim = this.#aim.map((place, axis) => clamp(place + by * step[axis]));
      this.#showAim();
    } else if (event.key === "Enter" || event.key === " ") {
      this.add([[...this.#aim]]);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #showAim() {
    this.aim.style.left = `${100 * this.#aim[0]}%`;
    this.aim.style.top = `${100 * this.#aim[1]}%`;
  }
}
