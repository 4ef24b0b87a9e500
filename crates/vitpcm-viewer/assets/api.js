// The JSON API (docs/reference/http-api.md) as functions. A busy server is asked again; every other refusal is an ApiError.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

async function request(path, options = {}) {
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the server does not answer; is vitpcm serve still running?");
    }
    if (response.ok) return response;
    if (response.status === 503 && attempt < 60) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    const problem = await response.json().catch(() => ({}));
    throw new ApiError(response.status, problem.error ?? `the server answered ${response.status}`);
  }
}

function post(path, value, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(value), signal });
}

const image = (id) => `/api/images/${encodeURIComponent(id)}`;

export const model = async () => (await request("/api/model")).json();

export async function upload(file) {
  const headers = { "Content-Type": "application/octet-stream" };
  const path = `/api/images?name=${encodeURIComponent(file.name ?? "pasted.png")}`;
  return (await request(path, { method: "POST", headers, body: file })).json();
}

export const imageInfo = async (id) => (await request(image(id))).json();
export const forget = (id) => request(image(id), { method: "DELETE" });
export const viewUrl = (id) => `${image(id)}/view`;
export const mask = async (id, wish, signal) => (await post(`${image(id)}/mask`, wish, signal)).json();
export const scores = async (id, className) => (await request(`${image(id)}/scores/${encodeURIComponent(className)}`)).blob();

/** A download: its bytes, and the name that the server gives them. */
export async function download(format, images) {
  const response = await post("/api/downloads", { format, images });
  const name = /filename\*=UTF-8''([^;]+)/.exec(response.headers.get("Content-Disposition") ?? "");
  return { blob: await response.blob(), name: name ? decodeURIComponent(name[1]) : `masks.${format}` };
}
