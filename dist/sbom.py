"""Writes the dependencies of the tinkrs program as a CycloneDX 1.5 document.

usage: sbom.py TARGET

Only what is linked into the program for TARGET is listed: no build scripts' or tests' dependencies. The versions and
checksums are those of Cargo.lock, which the build is locked to.
"""

import json
import subprocess
import sys
import tomllib


def cargo_tree(target: str) -> set[tuple[str, str]]:
    """The packages (name, version) that are linked into the program."""
    lines = subprocess.run(
        ["cargo", "tree", "--locked", "-p", "tinkrs-cli", "--edges", "normal,no-proc-macro", "--target", target,
         "--prefix", "none", "--format", "{p}"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()
    packages = set()
    for line in lines:
        name, version = line.split()[:2]
        packages.add((name, version.removeprefix("v")))
    return packages


def document(target: str) -> dict:
    """The CycloneDX document of the program for a target."""
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target],
        check=True, capture_output=True, text=True,
    ).stdout)
    licences = {(package["name"], package["version"]): package["license"] for package in metadata["packages"]}
    with open("Cargo.lock", "rb") as file:
        checksums = {(package["name"], package["version"]): package.get("checksum")
                     for package in tomllib.load(file)["package"]}
    components = []
    for name, version in sorted(cargo_tree(target)):
        component = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
        if licence := licences.get((name, version)):
            component["licenses"] = [{"expression": licence.replace("/", " OR ")}]
        if checksum := checksums.get((name, version)):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    program = next(component for component in components if component["name"] == "tinkrs-cli")
    components.remove(program)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**program, "type": "application", "name": "tinkrs"}},
        "components": components,
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    json.dump(document(sys.argv[1]), sys.stdout, indent=1)
    print()
