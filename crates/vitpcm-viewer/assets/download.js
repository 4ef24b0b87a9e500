// Downloads: a format, and what it is good for; this image or all of them.

import * as api from "./api.js";

const element = (id) => document.getElementById(id);

/** Fills the list of formats. */
export function offerFormats(formats) {
  const select = element("format");
  select.replaceChildren(...formats.map((format) => new Option(format.title, format.name)));
  const describe = () => {
    element("format-hint").textContent = formats.find((format) => format.name === select.value)?.description ?? "";
  };
  select.addEventListener("change", describe);
  describe();
}

/** Has the server make a file of these images and saves it. Gives its name. */
export async function save(images) {
  const { blob, name } = await api.download(element("format").value, images);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  return name;
}
