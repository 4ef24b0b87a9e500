// Tags as chips, and the legend of what the mask shows. Names reach the page as text only.

import { css } from "./colours.js";

const element = (id) => document.getElementById(id);
/** Classes at least this probable are offered at once; the others wait under "More classes". */
const OFFERED_FROM = 0.05;
const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : `${Math.round(100 * share)} %`);

function make(tag, text) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Calls back while a class is pointed at or has the focus. */
function onAttention(node, className, { show, hide }) {
  node.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") show(className); });
  node.addEventListener("pointerleave", hide);
  node.addEventListener("focus", () => { if (node.matches(":focus-visible")) show(className); });
  node.addEventListener("blur", hide);
}

/** The chips of one image. `heat` has `show(name)` and `hide()`; `toggle(name)` is called when a chip is pressed. */
export function drawChips({ tags, chosen, isAny, colourOf, heat, toggle }) {
  const byProbability = [...tags].sort((a, b) => b.probability - a.probability);
  const isOffered = (tag) => chosen.has(tag.name) || tag.probability >= OFFERED_FROM;
  const focused = document.activeElement?.dataset?.tag;
  const chip = (tag) => {
    const button = make("button");
    button.type = "button";
    button.className = "chip";
    button.dataset.tag = tag.name;
    button.setAttribute("aria-pressed", String(isAny || chosen.has(tag.name)));
    const dot = make("i");
    dot.style.background = css(colourOf(tag.name));
    button.append(dot, make("span", tag.name));
    if (tag.probability >= 0.01) button.append(make("small", percent(tag.probability)));
    button.title = `${tag.name}: the model's probability is ${percent(tag.probability)}`;
    button.addEventListener("click", () => toggle(tag.name));
    onAttention(button, tag.name, heat);
    return button;
  };
  const offered = byProbability.filter(isOffered);
  const others = byProbability.filter((tag) => !isOffered(tag)).sort((a, b) => a.name.localeCompare(b.name));
  element("chips").replaceChildren(...offered.map(chip));
  element("more-chips").replaceChildren(...others.map(chip));
  element("more").hidden = others.length === 0;
  element("more-title").textContent = `More classes (${others.length})`;
  element("find").hidden = others.length < 8;
  element("any").setAttribute("aria-pressed", String(isAny));
  const hasSuggestion = tags.some((tag) => tag.suggested);
  element("tags-hint").textContent = isAny
    ? "Every class competes in every pixel."
    : chosen.size > 0 ? "What is in the picture? The mask follows."
    : hasSuggestion ? "No tag: everything is background."
    : "The model is not sure what this is. Choose a tag.";
  filterChips();
  if (focused) {
    [...document.querySelectorAll(".chip")].find((node) => node.dataset.tag === focused)?.focus();
  }
}

/** Hides the chips whose name does not have what is typed. */
export function filterChips() {
  const wanted = element("find").value.trim().toLowerCase();
  for (const node of element("more-chips").children) {
    node.hidden = !node.dataset.tag.toLowerCase().includes(wanted);
  }
}

/** Classes and the share of the image that each takes; a press pins the heat map. */
export function drawLegend({ areas, colourOf, heat, pinned, pin }) {
  const row = ({ class: name, share }) => {
    const button = make("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(pinned === name));
    const swatch = make("i"), bar = make("b");
    swatch.style.background = css(colourOf(name));
    bar.style.setProperty("--share", `${100 * share}%`);
    bar.style.setProperty("--colour", css(colourOf(name)));
    button.append(swatch, make("span", name), make("small", percent(share)), bar);
    button.addEventListener("click", () => pin(name));
    onAttention(button, name, heat);
    const item = make("li");
    item.append(button);
    return item;
  };
  element("legend").replaceChildren(...[...areas].sort((a, b) => b.share - a.share).map(row));
}
