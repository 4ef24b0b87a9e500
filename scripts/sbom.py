#!/usr/bin/env python3
"""A software bill of materials of the binary `vitpcm`, CycloneDX 1.5 as JSON, on stdout.

    python3 scripts/sbom.py > vitpcm.cdx.json

Made of `cargo metadata` (what is compiled for this platform without optional features) and Cargo.lock (checksums). Needs Python 3.8
and cargo, nothing else. The same lock file gives the same bytes: there is no time and no random number in it.
"""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = "vitpcm-cli"


def metadata():
    host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    triple = next(line.split()[1] for line in host.splitlines() if line.startswith("host:"))
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", triple]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def checksums():
    """Checksums of Cargo.lock by name and version; a line-based look at a file that cargo writes."""
    found, name, version = {}, None, None
    with open(os.path.join(ROOT, "Cargo.lock"), encoding="utf-8") as lock:
        for line in lock:
            key, _, value = line.strip().partition(" = ")
            if key == "name":
                name = value.strip('"')
            elif key == "version":
                version = value.strip('"')
            elif key == "checksum":
                found[name, version] = value.strip('"')
    return found


def compiled(graph, start):
    """Packages that end up in the binary or are run to build it: all but dependencies of tests."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    reached, edges, waiting = set(), {}, [start]
    while waiting:
        package = waiting.pop()
        if package in reached:
            continue
        reached.add(package)
        needed = [
            dependency["pkg"]
            for dependency in nodes[package]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        ]
        edges[package] = sorted(needed)
        waiting += needed
    return reached, edges


def licence(package):
    text = package.get("license")
    if not text:
        return []
    expression = text.replace("/", " OR ")  # the old way to write it
    return [{"expression": " ".join(expression.split())}]


def main():
    graph, sums = metadata(), checksums()
    packages = {package["id"]: package for package in graph["packages"]}
    start = next(identity for identity, package in packages.items() if package["name"] == BINARY)
    reached, edges = compiled(graph, start)

    def purl(identity):
        package = packages[identity]
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(identity):
        package = packages[identity]
        entry = {
            "type": "library",
            "bom-ref": purl(identity),
            "name": package["name"],
            "version": package["version"],
            "purl": purl(identity),
            "licenses": licence(package),
        }
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package.get("repository"):
            entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return entry

    by_name = sorted(reached, key=purl)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(start), "type": "application", "name": "vitpcm"}},
        "components": [component(identity) for identity in by_name if identity != start],
        "dependencies": [
            {"ref": purl(identity), "dependsOn": [purl(other) for other in edges[identity]]} for identity in by_name
        ],
    }
    json.dump(bill, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
    unnamed = [purl(identity) for identity in by_name if not packages[identity].get("license")]
    print(f"{len(by_name)} packages, {len(unnamed)} without a licence {unnamed or ''}", file=sys.stderr)


if __name__ == "__main__":
    main()
