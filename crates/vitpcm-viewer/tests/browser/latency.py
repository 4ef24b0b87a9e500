"""How long the page takes from a press to the new mask on the screen, and the server's part of it.

    venv/bin/python crates/vitpcm-viewer/tests/browser/latency.py --vitpcm target/release/vitpcm --photo cat.png

Needs what drive.py needs. The photograph is scaled to 960×640, where a tag is switched on and off, and to 500×375, where
the CRF's strength is changed; medians and the slowest of 20 each, and the time of the upload with the network's run.
"""

import argparse
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

from drive import Page
from PIL import Image

# Presses something and waits for the status line that follows the mask being drawn.
PRESS = """
const done = arguments[arguments.length - 1];
const status = document.getElementById("status");
const started = performance.now();
new MutationObserver((_, observer) => {
  if (!status.textContent.includes("mask in")) return;
  observer.disconnect();
  requestAnimationFrame(() => done([performance.now() - started, Number(/mask in (\\d+) ms/.exec(status.textContent)[1])]));
}).observe(status, { childList: true, characterData: true, subtree: true });
"""
TAG = PRESS + """[...document.querySelectorAll(".chip")].find((chip) => chip.dataset.tag === "dog").click();"""
STRENGTH = PRESS + """
const strength = document.getElementById("strength");
strength.value = strength.value === "1" ? 1.5 : 1;
strength.dispatchEvent(new Event("input"));
"""


def measure(page, script, what):
    times = [page.driver.execute_async_script(script) for _ in range(20)]
    for name, column in (("on the screen", 0), ("of it the server", 1)):
        values = [row[column] for row in times]
        print(f"{what}, {name}: median {statistics.median(values):.0f} ms, slowest {max(values):.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vitpcm", type=pathlib.Path, required=True)
    parser.add_argument("--photo", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    command = [arguments.vitpcm, "serve", "--port", "0", "--quiet"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = server.stdout.readline().strip()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            page = Page(url, folder, None)
            for width, height in ((960, 640), (500, 375)):
                path = folder / f"{width}x{height}.png"
                Image.open(arguments.photo).convert("RGB").resize((width, height)).save(path)
                started = time.monotonic()
                page.drop(path)
                page.until(lambda: page.all(".thumb") and not page.all(".thumb .spinner"), "the network")
                print(f"{path.name}: sent and looked at in {time.monotonic() - started:.1f} s")
                page.all(".thumb > button:first-child")[-1].click()
                page.wait_for_mask(path.name)
                measure(page, TAG, f"a tag at {width}×{height}")
                page.tick("#crf")
                page.wait_for_mask("refined")
                measure(page, STRENGTH, f"the CRF's strength at {width}×{height}")
                page.tick("#crf")
                time.sleep(1)
            page.driver.quit()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


if __name__ == "__main__":
    main()
