"""The viewer in a real browser: Debian's Chromium, driven through its driver.

    apt-get install chromium chromium-driver
    python3 -m venv venv && venv/bin/pip install selenium pillow numpy axe-core-python
    venv/bin/python crates/vitpcm-viewer/tests/browser/drive.py --vitpcm target/release/vitpcm \
        --photos cat.png astronaut.png --screenshots docs/pictures

Loads the page, drops two photographs, chooses tags and sees the mask change, refines, moves the line between before and
after, corrects, looks at heat maps, downloads every format and reads it back, tries the keyboard, a hostile name, a broken file, a
reload, both themes and a width of 400 pixels. The browser's console must stay empty and axe must find nothing to
complain of. The first photograph should show a cat, the second a person. Exits with 0 if all of that holds.
"""

import argparse
import hashlib
import io
import json
import pathlib
import signal
import subprocess
import tempfile
import time
import zipfile

import axe_core_python
import numpy
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WAIT_SECONDS = 120
AXE = (pathlib.Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
DROP = """
const [input] = arguments;
const transfer = new DataTransfer();
for (const file of input.files) transfer.items.add(file);
for (const type of ["dragenter", "dragover", "drop"])
  document.body.dispatchEvent(new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));
input.remove();
"""
MASK = """
const canvas = document.getElementById("mask");
return canvas.width + "x" + canvas.height + ":" + canvas.toDataURL();
"""


class Page:
    """The page and what is asked of it."""

    def __init__(self, url, downloads, screenshots):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,860"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        preferences = {
            "download.default_directory": str(downloads),
            "profile.default_content_setting_values.automatic_downloads": 1,
        }
        options.add_experimental_option("prefs", preferences)
        service = webdriver.ChromeService("/usr/bin/chromedriver")
        self.driver = webdriver.Chrome(options=options, service=service)
        self.url, self.downloads, self.screenshots = url, downloads, screenshots
        self.resize(1280, 860)
        self.theme("light")
        self.driver.get(url)
        self.until(lambda: self.find("#model").text, "the model's name")

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, condition, what):
        WebDriverWait(self.driver, WAIT_SECONDS, 0.05).until(lambda _: condition(), f"waited for {what}")

    def resize(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name):
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def screenshot(self, name):
        if not self.screenshots:
            return
        self.driver.execute_script("document.activeElement?.blur()")
        time.sleep(0.3)
        picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        picture.save(self.screenshots / f"{name}.jpg", quality=86, optimize=True, progressive=True)

    def drop(self, *paths):
        self.driver.execute_script(
            "const i = document.createElement('input'); i.type = 'file'; i.multiple = true; i.id = 'test-input';"
            "i.setAttribute('aria-hidden', 'true'); document.body.append(i);"
        )
        source = self.find("#test-input")
        source.send_keys("\n".join(str(path) for path in paths))
        self.driver.execute_script(DROP, source)

    def mask(self):
        return hashlib.sha256(self.driver.execute_script(MASK).encode()).hexdigest()

    def status(self):
        return self.find("#status").text

    def wait_for_mask(self, *words):
        wanted = (*words, "mask in")
        self.until(lambda: all(word in self.status() for word in wanted), f"{wanted} in the status")

    def chip(self, name):
        return next(chip for chip in self.all(".chip") if chip.get_attribute("data-tag") == name)

    def keys(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def tick(self, selector):
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)

    def select(self, selector, value):
        self.driver.execute_script(
            "const s = document.querySelector(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change'));", selector, value)

    def downloaded(self, button):
        before = set(self.downloads.iterdir())
        self.tick(button)
        is_whole = lambda path: path.suffix != ".crdownload" and not path.name.startswith(".")
        new = lambda: {path for path in set(self.downloads.iterdir()) - before if is_whole(path)}
        self.until(new, f"a download of {button}")
        path = new().pop()
        size = -1
        while path.stat().st_size != size:
            size = path.stat().st_size
            time.sleep(0.1)
        return path

    def console(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def check_console(self):
        entries = self.console()
        assert not entries, entries

    def check_accessible(self, where):
        self.driver.execute_script(AXE)
        # Colours on their way from one theme to the other have no contrast that counts.
        result = self.driver.execute_async_script("""
            const done = arguments[0];
            const transitions = document.getAnimations().filter((animation) => animation instanceof CSSTransition);
            Promise.allSettled(transitions.map((transition) => transition.finished)).then(() => axe.run()).then(done);
        """)
        problems = [(v["id"], v["help"], [n["html"][:120] for n in v["nodes"][:3]]) for v in result["violations"]]
        assert not problems, (where, json.dumps(problems, indent=1))


def step(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def drive(page, photos, folder):
    step("the empty page")
    page.check_accessible("empty page")

    step("two images are dropped; the first one's mask appears by itself")
    page.drop(*photos)
    page.wait_for_mask(photos[0].name, "cat")
    page.until(lambda: not page.all(".thumb .spinner"), "both images")
    assert len(page.all(".thumb")) == 2
    page.check_accessible("an image")
    suggested = page.mask()

    step("another tag changes the mask, taking it back restores it")
    assert page.chip("cat").get_attribute("aria-pressed") == "true"
    page.find("#more summary").click()
    page.chip("dog").click()
    page.wait_for_mask("cat, dog")
    assert page.mask() != suggested
    page.chip("dog").click()
    page.wait_for_mask("· cat ·")
    assert page.mask() == suggested
    page.find("#none").click()
    page.wait_for_mask("no tag")
    assert "100 %" in page.find("#legend").text
    page.find("#suggested").click()
    page.wait_for_mask("· cat ·")
    page.find("#more summary").click()

    step("the CRF, and its strength")
    page.tick("#crf")
    page.wait_for_mask("refined ×1.0")
    refined = page.mask()
    assert refined != suggested
    page.keys("+", "+")
    page.wait_for_mask("refined ×1.2")
    page.keys("-", "-")
    page.wait_for_mask("refined ×1.0")
    assert page.mask() == refined
    page.screenshot("viewer-light")

    step("corrections: a click, a line, the keyboard")
    page.keys("k")
    page.select("#hint-class", "dog")
    stage = page.find("#stage")
    width, height = stage.size["width"], stage.size["height"]
    at = lambda x, y: (round((x - 0.5) * width), round((y - 0.5) * height))
    ActionChains(page.driver).move_to_element_with_offset(stage, *at(0.55, 0.5)).click().perform()
    page.wait_for_mask("cat, dog, 1 correction,")
    dog = page.mask()
    assert dog != refined
    page.keys("z")
    page.wait_for_mask("· cat, refined")
    assert page.mask() == refined
    page.select("#hint-class", "background")
    line = ActionChains(page.driver).move_to_element_with_offset(stage, *at(0.85, 0.7)).click_and_hold()
    line.move_by_offset(30, 30).move_by_offset(20, 30).release().perform()
    page.wait_for_mask("1 correction")
    assert len(page.all("#hints polyline")) == 2, "a line and its rim"
    page.select("#hint-class", "cat")
    page.driver.execute_script("document.getElementById('stage').focus()")
    page.keys(Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ENTER)
    page.wait_for_mask("2 corrections")
    page.check_accessible("corrections")
    page.screenshot("viewer-correct")
    page.tick("#clear-hints")
    page.wait_for_mask("· cat, refined")
    assert page.mask() == refined
    page.keys("k")

    step("uncertain regions filled, and the mask before that")
    page.keys("f")
    page.wait_for_mask(", filled ·")
    page.keys("f")
    page.wait_for_mask("refined ×1.0 ·")
    assert page.mask() == refined

    step("heat maps, while a class is pointed at")
    row = next(b for b in page.all("#legend button") if "cat" in b.text)
    ActionChains(page.driver).move_to_element(row).perform()
    page.until(lambda: page.all("#heat.shown"), "a heat map")
    time.sleep(0.3)
    assert page.find("#heat-name").text == "cat"
    page.screenshot("viewer-heat")
    ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    page.until(lambda: not page.all("#heat.shown"), "no heat map")

    step("the line between before and after")
    page.tick("#compare")
    divider = page.find("#divider")
    value = lambda: int(divider.get_attribute("aria-valuenow"))
    assert value() == 50
    ActionChains(page.driver).drag_and_drop_by_offset(divider, -150, 0).perform()
    dragged = value()
    assert dragged < 45, dragged
    divider.send_keys(Keys.ARROW_RIGHT)
    assert value() == dragged + 2
    clip = page.driver.execute_script("return document.getElementById('mask').style.clipPath")
    assert clip.startswith("inset(0"), clip
    assert len(page.all(".thumb")) == 2, "dragging the line added an image"
    page.screenshot("viewer-compare")
    page.select("#before-what", "unrefined")
    page.until(lambda: page.driver.execute_script("return document.getElementById('before').width") > 1, "the mask before")
    page.tick("#compare")

    step("downloads, read back")
    path = page.downloaded("#download")
    mask = Image.open(path)
    assert mask.mode == "P" and mask.size == Image.open(photos[0]).size, (mask.mode, mask.size)
    assert path.stem == photos[0].stem and set(numpy.unique(mask)) == {0, 8}, numpy.unique(mask)
    formats = [option.get_attribute("value") for option in page.all("#format option")]
    assert len(formats) >= 8, formats
    for name in formats:
        page.select("#format", name)
        path = page.downloaded("#download-all")
        if path.suffix == ".zip":
            archive = zipfile.ZipFile(path)
            assert archive.testzip() is None and archive.namelist(), name
            print(f"  {name}: {path.name} with {archive.namelist()}")
        else:
            assert json.loads(path.read_text()), name
            print(f"  {name}: {path.name}")
    coco = json.loads(next(page.downloads.glob("*.json")).read_text())
    assert {image["file_name"] for image in coco["images"]} == {photo.name for photo in photos}

    step("the keyboard")
    page.driver.execute_script("document.activeElement?.blur()")
    page.keys(Keys.ARROW_RIGHT)
    page.wait_for_mask(photos[1].name, "person")
    page.keys("v")
    assert page.find('input[value="mask"]').is_selected()
    page.keys("v", "v")
    page.keys("?")
    assert page.find("#shortcuts").is_displayed()
    page.check_accessible("shortcuts")
    page.keys(Keys.ESCAPE)
    page.keys("n")
    page.wait_for_mask("no tag")
    page.keys("s")
    page.wait_for_mask("person")

    step("dark")
    page.keys("t")
    assert page.driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    page.check_accessible("dark")
    page.screenshot("viewer-dark")

    step("400 pixels wide")
    page.resize(400, 850)
    time.sleep(0.5)
    width = page.driver.execute_script("return document.scrollingElement.scrollWidth")
    assert width <= 400, f"the page is {width} pixels wide"
    page.check_accessible("400 px")
    page.screenshot("viewer-narrow")
    page.resize(1280, 860)
    page.keys("t")
    page.check_console()

    step("a reload keeps the images")
    page.driver.refresh()
    page.wait_for_mask(photos[0].name)
    assert len(page.all(".thumb")) == 2
    page.check_console()

    step("a hostile name is text, a broken file a message")
    hostile = folder / "<img src=x onerror=document.title='hacked'>.png"
    Image.new("RGB", (60, 40), (90, 120, 200)).save(hostile)
    page.drop(hostile)
    page.until(lambda: not page.all(".thumb .spinner") and len(page.all(".thumb")) == 3, "the third image")
    page.all(".thumb > button:first-child")[2].click()
    page.until(lambda: "onerror" in page.status() and "mask in" in page.status(), "its mask")
    assert page.driver.title == "vitpcm viewer"
    page.check_console()
    broken = folder / "broken.jpg"
    broken.write_bytes(photos[0].read_bytes()[:2000])
    page.drop(broken)
    page.until(lambda: "broken.jpg" in page.find("#problems").text, "the problem")
    page.check_accessible("a problem")
    # The browser itself notes that the upload was refused; nothing else may stand there.
    assert all("422" in entry["message"] for entry in page.console())
    page.find(".problem button").click()
    page.keys(Keys.DELETE)
    page.until(lambda: len(page.all(".thumb")) == 3, "one image less")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vitpcm", type=pathlib.Path, help="the binary")
    parser.add_argument("--url", help="a server that runs already, instead of the binary")
    parser.add_argument("--photos", type=pathlib.Path, nargs=2, required=True)
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()
    photos = [photo.resolve() for photo in arguments.photos]
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    server, url = None, arguments.url
    if not url:
        command = [arguments.vitpcm, "serve", "--port", "0", "--quiet"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = server.stdout.readline().strip()
    step(url)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        downloads = folder / "downloads"
        downloads.mkdir()
        page = Page(url, downloads, arguments.screenshots)
        try:
            drive(page, photos, folder)
        except BaseException:
            page.driver.save_screenshot("/tmp/viewer-failed.png")
            print("console:", page.console(), "\nstatus:", page.status(), "\nsee /tmp/viewer-failed.png")
            raise
        finally:
            page.driver.quit()
            if server:
                server.send_signal(signal.SIGINT)
                code = server.wait(20)
    if server:
        assert code == 0, f"Ctrl-C: exit code {code}"
    step("all of it holds")


if __name__ == "__main__":
    main()
