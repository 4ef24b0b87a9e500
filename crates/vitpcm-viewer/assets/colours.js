// Colours of classes, and what a mask's pixels mean.

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

/** Colours that stand out on photographs and from each other; the background is grey. */
export function vividPalette(count) {
  const palette = [[110, 116, 114]];
  for (let i = 1; i < count; i++) {
    // Turns by the golden angle keep any run of classes apart; three lightnesses help those of like hue.
    const hue = (240 + 137.508 * i) % 360;
    palette.push(fromOklch([0.72, 0.64, 0.8][i % 3], 0.19, hue));
  }
  return palette;
}

function fromOklch(lightness, chroma, hue) {
  const angle = (hue * Math.PI) / 180;
  for (let c = chroma; ; c -= 0.01) {
    const a = c * Math.cos(angle), b = c * Math.sin(angle);
    const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
    const linear = [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ];
    // Less chroma until the colour is one that screens have.
    if (c <= 0 || linear.every((v) => v >= 0 && v <= 1)) {
      const encode = (v) => (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055);
      return linear.map((v) => Math.round(255 * Math.min(1, Math.max(0, encode(Math.max(0, v))))));
    }
  }
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
