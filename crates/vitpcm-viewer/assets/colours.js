// What a mask's pixels mean, and colours of scores. Colours of classes come from the server.

/** Label of a pixel of the VOC palette: bit 7 - i of each channel is bit 3 i + channel of the label. */
function vocLabel(red, green, blue) {
  let label = 0;
  for (let i = 0; i < 3; i++) {
    const shift = 7 - i;
    label |= (((red >> shift) & 1) | (((green >> shift) & 1) << 1) | (((blue >> shift) & 1) << 2)) << (3 * i);
  }
  return label & 255;
}

/** A mask's labels, one a pixel, from its PNG as a data URL. */
export async function labelsOf(dataUrl) {
  const text = atob(dataUrl.slice(dataUrl.indexOf(",") + 1));
  const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const { width, height, data } = await pixelsOf(new Blob([bytes], { type: "image/png" }));
  const labels = new Uint8Array(width * height);
  for (let i = 0; i < labels.length; i++) labels[i] = vocLabel(data[4 * i], data[4 * i + 1], data[4 * i + 2]);
  return { width, height, labels };
}

/** The pixels of an image file exactly as they are stored. */
export async function pixelsOf(blob) {
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

/** Matplotlib's viridis (CC0) for 0 to 255. */
export const viridis = (() => {
  const points = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129],
    [92, 200, 99], [170, 220, 50], [253, 231, 37]];
  return Array.from({ length: 256 }, (_, value) => {
    const position = (value / 255) * (points.length - 1);
    const first = Math.min(Math.floor(position), points.length - 2), t = position - first;
    return points[first].map((v, channel) => Math.round(v * (1 - t) + points[first + 1][channel] * t));
  });
})();

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
