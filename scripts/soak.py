#!/usr/bin/env python3
"""Leaves vitpcm running: `serve` under load, and `train` that is stopped and resumed all the time, at once, for some minutes.

    cargo build --release
    python3 scripts/soak.py --minutes 30 --out soak --pictures docs/pictures

Looks at each process once a second (memory, open files) and draws what it saw. Ends with exit code 1 where the server gave a wrong
answer, where a resumed run differs from an undisturbed one by a byte, or where memory or open files grew beyond the bounds below.
Needs Linux and Python 3.8; nothing else.
"""

import argparse
import collections
import csv
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

TRAIN = (
    "--preset=demo --quiet --device=cpu --threads=1 --epochs=12 --batch=4 --set=model.grid=4 "
    "--set=model.inference_grid=4 --set=validation.grid=4 --set=model.lstm_units=8 --set=schedule.effective_batch=8 "
    "--set=validation.every_epochs=2 --set=loader.save_minutes=0.002"
).split()
CLIENTS = 3
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The second half of the time may need so much more than the first: what a leak would exceed within the half hour.
MEMORY_GROWTH = 0.10
HANDLES = 160  # 128 connections, the model, the log, and what the runtime keeps


def look_at(process):
    """Resident megabytes and open files of a process; None once it is gone."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii") as status:
            resident = next((line.split()[1] for line in status if line.startswith("VmRSS")), None)
        return (int(resident) / 1024, len(os.listdir(f"/proc/{process}/fd"))) if resident else None
    except (OSError, StopIteration):
        return None


class Problems:
    def __init__(self):
        self.lines, self.lock = [], threading.Lock()

    def add(self, text):
        with self.lock:
            self.lines.append(text)
            if len(self.lines) <= 20:
                print(f"problem: {text}", flush=True)


class Client(threading.Thread):
    """Uploads images, asks for masks and downloads, forgets some, and sends rubbish in between."""

    def __init__(self, number, port, images, end, problems):
        super().__init__(daemon=True)
        self.random, self.port, self.images = random.Random(number), port, images
        self.end, self.problems, self.answers = end, problems, collections.Counter()

    def ask(self, method, path, body=None, kind="application/json", expected=(200,)):
        try:
            # Patient: other work may share the machine.
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})
            response = connection.getresponse()
            answer = response.read()
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            if time.time() < self.end - 1:
                self.problems.add(f"{method} {path}: {error}")
            return None
        self.answers[response.status] += 1
        # Busy, with the wish to be asked again: an answer like any other.
        if response.status not in (*expected, 503):
            self.problems.add(f"{method} {path}: {response.status} {answer[:200]!r}, expected {expected}")
        return answer if response.status in expected and response.status < 300 else None

    def rubbish(self):
        choice = self.random.randrange(4)
        if choice == 0:
            self.ask("POST", "/api/images?name=x.png", self.random.randbytes(2000), "image/png", (422,))
        elif choice == 1:
            self.ask("GET", "/api/images/no-such-image", expected=(404,))
        elif choice == 2:
            self.ask("POST", "/api/downloads", b'{"format": "none", "images": []}', expected=(400, 422))
        else:
            # Half a request, and gone.
            with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
                connection.sendall(b"POST /api/images?name=x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\nhalf")
            self.answers["cut"] += 1

    def run(self):
        while time.time() < self.end:
            name = self.random.choice(list(self.images))
            taken = self.ask("POST", f"/api/images?name={name}", self.images[name], "image/png", (201,))
            if not taken:
                time.sleep(0.05)
                continue
            about = json.loads(taken)
            path = f"/api/images/{about['id']}"
            tags = [about["tags"][0]["name"]] if about["tags"] else []
            crf = self.random.choice([0.0, 0.0, 0.0, 1.0])
            self.ask("GET", f"{path}/view")
            self.ask("POST", f"{path}/mask", json.dumps({"tags": tags, "crf": crf, "size": "view"}).encode())
            wish = {"format": "coco", "images": [{"id": about["id"], "tags": tags, "crf": 0.0}]}
            self.ask("POST", "/api/downloads", json.dumps(wish).encode())
            if self.random.random() < 0.5:
                self.ask("DELETE", path, expected=(200, 204))
            self.rubbish()


def serve(arguments, work, binary, end, samples, problems):
    """Runs the server and its clients until the end; gives the clients' answers by status."""
    log = open(os.path.join(work, "serve.log"), "w", encoding="utf-8")
    command = [binary, "serve", "--port=0", "--device=cpu", f"--size={arguments.size}", "--max-images=30", "--max-memory=128"]
    command += ["--model", arguments.model] if arguments.model else []
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    port = int(server.stdout.readline().strip().rstrip("/").rsplit(":", 1)[1])
    drawn = os.path.join(work, "scenes", "images")
    paths = [os.path.join(drawn, name) for name in sorted(os.listdir(drawn))[:10]]
    # Photographs are larger than drawn scenes.
    paths += [os.path.join(ROOT, "docs", name) for name in ("photographs.jpg", "demo.png")]
    images = {}
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            images[f"{number}-{os.path.basename(path)}"] = file.read()
    clients = [Client(number, port, images, end, problems) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    start = time.time()
    while time.time() < end:
        seen = look_at(server.pid)
        if seen is None or server.poll() is not None:
            problems.add(f"the server ended with {server.poll()}")
            break
        samples.append((time.time() - start, *seen))
        time.sleep(1)
    for client in clients:
        client.join(timeout=660)
    server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=60)
    if code != 0:
        problems.add(f"the server ended with {code} at SIGTERM")
    return sum((client.answers for client in clients), collections.Counter())


def train(work, binary, end, samples, problems):
    """Stops a run and resumes it until it is finished, holds it to an undisturbed one, and begins again."""
    chance = random.Random(7)
    counts = collections.Counter()
    data, whole, out = (os.path.join(work, name) for name in ("small", "whole", "run"))

    def start(folder):
        resume = ["--resume"] if os.path.exists(os.path.join(folder, "config.toml")) else []
        return subprocess.Popen([binary, "train", "--data", data, "--out", folder, *TRAIN, *resume], stderr=subprocess.PIPE,
                                text=True, stdout=subprocess.DEVNULL)

    undisturbed = start(whole)
    if undisturbed.wait() != 0:
        problems.add(f"training failed: {undisturbed.stderr.read()}")
        return counts
    results = ["model.safetensors", "config.toml", os.path.join("last", "state.safetensors")]
    begin = time.time()
    while time.time() < end:
        run = start(out)
        counts["starts"] += 1
        stop_at = time.time() + chance.uniform(0.2, 6.0)
        while run.poll() is None and time.time() < stop_at:
            seen = look_at(run.pid)
            if seen:
                samples.append((time.time() - begin, *seen))
            time.sleep(0.25)
        kind = signal.SIGKILL if chance.random() < 0.4 else signal.SIGTERM
        if run.poll() is None:
            run.send_signal(kind)
        code, said = run.wait(), run.stderr.read()
        counts[{0: "finished", 130: "stopped, state saved", -9: "killed", -15: "stopped before it began"}.get(code, "failed")] += 1
        if code not in (0, 130, -9, -15):
            problems.add(f"training ended with {code}: {said}")
        if code == 0:
            for name in results:
                with open(os.path.join(whole, name), "rb") as expected, open(os.path.join(out, name), "rb") as found:
                    if expected.read() != found.read():
                        problems.add(f"{name} of a resumed run differs from the undisturbed run's")
            leftovers = [name for _, _, names in os.walk(out) for name in names if name.endswith((".tmp", ".lock"))]
            if leftovers:
                problems.add(f"left behind: {leftovers}")
            shutil.rmtree(out)
    shutil.rmtree(out, ignore_errors=True)
    return counts


def curve(samples, column, title, unit, path):
    """Draws a column of the samples over time as SVG: the most and the least of each of 300 slices."""
    width, height, left, bottom, top = 720, 200, 60, 30, 28
    length = max(sample[0] for sample in samples) or 1
    most = max(sample[column] for sample in samples) * 1.1
    slices = collections.defaultdict(list)
    for sample in samples:
        slices[min(int(sample[0] / length * 300), 299)].append(sample[column])
    across = lambda index: left + (width - left - 10) * index / 299
    down = lambda value: top + (height - top - bottom) * (1 - value / most)
    upper = [f"{across(i):.1f},{down(max(values)):.1f}" for i, values in sorted(slices.items())]
    lower = [f"{across(i):.1f},{down(min(values)):.1f}" for i, values in sorted(slices.items(), reverse=True)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/><text x="{left}" y="16" font-size="13">{title}</text>',
    ]
    for share in (0, 0.5, 1):
        value = most / 1.1 * share
        parts.append(f'<path d="M{left} {down(value):.1f}H{width - 10}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{value:.0f} {unit}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            f'<text x="{across(299 * share):.1f}" y="{height - 10}" text-anchor="middle">{length / 60 * share:.0f} min</text>'
        )
    parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="#4878a8" stroke="#4878a8" stroke-width="1.2"/></svg>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n")


def halves(samples, column):
    """The most of the first half, its first fifth apart, which warms up, and of the second half."""
    length = samples[-1][0]
    first = max((s[column] for s in samples if length / 10 < s[0] <= length / 2), default=0)
    return first, max((s[column] for s in samples if s[0] > length / 2), default=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--out", default="soak", help="folder to work in; emptied first")
    parser.add_argument("--binary", default="target/release/vitpcm")
    parser.add_argument("--pictures", help="folder for the curves [default: the working folder]")
    parser.add_argument("--model", help="model of the server [default: the embedded one]")
    parser.add_argument("--size", type=int, default=224, help="side to which the server resizes images for the network")
    arguments = parser.parse_args()
    work = os.path.abspath(arguments.out)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    binary = shutil.copy(arguments.binary, work)  # whatever is built meanwhile
    subprocess.run([binary, "demo", "--data-only", os.path.join(work, "scenes"), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    # A few of the drawn scenes: an epoch of seconds.
    small = os.path.join(work, "small")
    os.makedirs(os.path.join(small, "images"))
    with open(os.path.join(work, "scenes", "tags.csv"), encoding="utf-8") as file:
        rows = file.read().splitlines()
    kept = rows[:1] + rows[1:25] + rows[-6:]
    for row in kept[1:]:
        name = row.split(",")[0]
        shutil.copy(os.path.join(work, "scenes", "images", os.path.basename(name)), os.path.join(small, "images"))
    with open(os.path.join(small, "tags.csv"), "w", encoding="utf-8") as file:
        file.write("\n".join(kept) + "\n")

    end = time.time() + 60 * arguments.minutes
    problems, seen, counts = Problems(), {"serve": [], "train": []}, {}
    jobs = {
        "serve": lambda: serve(arguments, work, binary, end, seen["serve"], problems),
        "train": lambda: train(work, binary, end, seen["train"], problems),
    }
    threads = [threading.Thread(target=lambda name=name, job=job: counts.update({name: job()})) for name, job in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    pictures = arguments.pictures or work
    os.makedirs(pictures, exist_ok=True)
    for name, samples in seen.items():
        with open(os.path.join(work, f"{name}.csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["seconds", "resident_megabytes", "open_files"])
            writer.writerows([f"{t:.1f}", f"{memory:.1f}", handles] for t, memory, handles in samples)
        words = {"serve": "serve under load", "train": "train, stopped and resumed all the time"}[name]
        curve(samples, 1, f"{words}: memory", "MB", os.path.join(pictures, f"soak-{name}-memory.svg"))
        curve(samples, 2, f"{words}: open files", "", os.path.join(pictures, f"soak-{name}-files.svg"))
        before, after = halves(samples, 1)
        if after > before * (1 + MEMORY_GROWTH):
            problems.add(f"{name}: {before:.0f} MB in the first half, {after:.0f} MB in the second")
        handles = max(sample[2] for sample in samples)
        if handles > HANDLES:
            problems.add(f"{name}: {handles} open files")
        print(f"{name}: {dict(counts.get(name) or {})}")
        print(f"{name}: at most {before:.0f} MB in the first half, {after:.0f} MB in the second; {handles} open files")
    print(f"{len(problems.lines)} problems in {arguments.minutes:.0f} minutes")
    return 1 if problems.lines else 0


if __name__ == "__main__":
    sys.exit(main())
