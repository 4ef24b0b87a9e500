// The strip: a small picture of every image, one of them the current one.

const CROSS = "M5 5l10 10M15 5L5 15";

function cross() {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(namespace, "path");
  path.setAttribute("d", CROSS);
  svg.append(path);
  return svg;
}

/** Draws all pictures again. Each has `key`, `name`, `state` ("waiting", "ready", "failed") and `thumbUrl`. */
export function drawStrip(pictures, current, { choose, remove }) {
  const strip = document.getElementById("strip");
  const focused = document.activeElement?.closest?.(".thumb")?.dataset.key;
  strip.replaceChildren(...pictures.map((picture) => {
    const item = document.createElement("li");
    item.className = "thumb";
    item.dataset.key = picture.key;
    const button = document.createElement("button");
    button.type = "button";
    button.title = picture.name;
    const words = { waiting: ", waiting for the network", failed: ", could not be read" };
    button.setAttribute("aria-label", picture.name + (words[picture.state] ?? ""));
    if (picture === current) button.setAttribute("aria-current", "true");
    if (picture.thumbUrl && picture.state !== "failed") {
      const image = document.createElement("img");
      image.alt = "";
      image.src = picture.thumbUrl;
      button.append(image);
    }
    if (picture.state !== "ready") {
      const mark = document.createElement("span");
      mark.className = picture.state === "failed" ? "failed" : "spinner";
      if (picture.state === "failed") mark.textContent = "!";
      button.append(mark);
    }
    button.addEventListener("click", () => choose(picture));
    const removal = document.createElement("button");
    removal.type = "button";
    removal.className = "remove";
    removal.setAttribute("aria-label", `Remove ${picture.name}`);
    removal.append(cross());
    removal.addEventListener("click", () => remove(picture));
    item.append(button, removal);
    return item;
  }));
  if (focused) strip.querySelector(`[data-key="${CSS.escape(focused)}"] > button`)?.focus();
  const item = strip.querySelector("[aria-current]")?.parentElement;
  if (item) {
    const left = item.offsetLeft - strip.offsetLeft;
    if (left < strip.scrollLeft || left + item.offsetWidth > strip.scrollLeft + strip.clientWidth) {
      strip.scrollTo({ left: left - strip.clientWidth / 2, behavior: "smooth" });
    }
  }
}

/** A problem that the reader may dismiss. */
export function tellProblem(text) {
  const problem = document.createElement("div");
  problem.className = "problem";
  const words = document.createElement("p");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.setAttribute("aria-label", "Dismiss");
  close.append(cross());
  close.addEventListener("click", () => problem.remove());
  problem.append(words, close);
  const problems = document.getElementById("problems");
  while (problems.children.length >= 4) problems.firstChild.remove();
  problems.append(problem);
}
