#!/usr/bin/env python3
"""A software bill of materials of the binary `vitpcm`, CycloneDX 1.5 as JSON, on stdout.

    python3 scripts/sbom.py > vitpcm.cdx.json
    python3 scripts/sbom.py --target aarch64-unknown-linux-gnu --features cuda --licences THIRD-PARTY-LICENCES > vitpcm.cdx.json

Made of `cargo metadata` (what is compiled for the target, by default this platform, with these features) and Cargo.lock (checksums).
`--licences` also writes the licence texts of all packages, each text once. Needs Python 3.8 and cargo, nothing else. The same lock file
gives the same bytes: there is no time and no random number in it.
"""

import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = "vitpcm-cli"
LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def host():
    about = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    return next(line.split()[1] for line in about.splitlines() if line.startswith("host:"))


def metadata(target, features):
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target]
    if features:
        command += ["--features", ",".join(f"{BINARY}/{feature}" for feature in features.split(","))]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)


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


def licence_texts(packages):
    """Each text once, under the names of the packages that come with it, then the packages that come with none."""
    owners, without = {}, []
    for package in packages:
        folder, found = os.path.dirname(package["manifest_path"]), False
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if name.upper().startswith(LICENCE_FILES) and os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read().replace("\r\n", "\n").strip()
                owners.setdefault(text, []).append(f"{package['name']} {package['version']}")
                found = True
        if not found:
            without.append(f"{package['name']} {package['version']} ({package.get('license')})")
    parts = ["vitpcm contains these packages. Licences with `OR` leave the choice; vitpcm.cdx.json names each package's."]
    for text, names in sorted(owners.items(), key=lambda item: (item[1], item[0])):
        parts.append("=" * 80 + "\n" + "\n".join(names) + "\n" + "-" * 80 + "\n" + text)
    if without:
        parts.append("=" * 80 + "\nWithout a text of their own:\n" + "\n".join(without))
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Writes the bill of materials of vitpcm to stdout.")
    parser.add_argument("--target", metavar="TRIPLE", help="default: this platform")
    parser.add_argument("--features", default="", help="optional features, separated by commas")
    parser.add_argument("--licences", metavar="FILE", help="also writes the licence texts of all packages")
    arguments = parser.parse_args()
    graph, sums = metadata(arguments.target or host(), arguments.features), checksums()
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
    if arguments.licences:
        with open(arguments.licences, "w", encoding="utf-8", newline="\n") as file:
            others = [packages[identity] for identity in by_name if not identity.startswith("path+")]
            file.write(licence_texts(others))
    unnamed = [purl(identity) for identity in by_name if not packages[identity].get("license")]
    print(f"{len(by_name)} packages, {len(unnamed)} without a licence {unnamed or ''}", file=sys.stderr)


if __name__ == "__main__":
    main()
