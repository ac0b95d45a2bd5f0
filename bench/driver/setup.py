"""What has to be there before anything is measured: programs, Python environments, models.

Everything that is installed is kept under ${TINKRS_CACHE:-.cache}. What is there already may be named instead:
TINKRS_BENCH_TINKER and TINKRS_BENCH_TORCH (an interpreter that has the packages), TINKRS_SKYRL (an environment),
TINKRS_MODELS (a folder), TINKRS_LLAMA_SERVER (a program), TINKRS_BENCH_BINARY (our program, where a section needs nothing else),
TINKRS_BENCH_GGUF (a folder with MODEL-FORMAT.gguf in bf16, q8_0 and q4_k_m for SmolLM2-135M-Instruct, Qwen3-0.6B-shape and Qwen3-1.7B-shape).
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .process import ROOT, Failed
from .progress import say

CACHE = Path(os.environ.get("TINKRS_CACHE") or ROOT / ".cache").absolute()
QUICK = os.environ.get("TINKRS_BENCH_QUICK", "") not in ("", "0")
ROUNDS = 1 if QUICK else int(os.environ.get("TINKRS_BENCH_ROUNDS") or 5)

STORIES, MINIMIND, SMOLLM = "stories15M", "MiniMind2-Small", "SmolLM2-135M-Instruct"
# Random weights: how fast a model computes does not depend on them.
QWEN_SHAPE, LARGE_SHAPE = "Qwen3-0.6B-shape", "Qwen3-1.7B-shape"
SHAPES = {QWEN_SHAPE: "random:qwen3-0.6b", LARGE_SHAPE: "random:qwen3-1.7b"}
LLAMA = "llama-cpp-python==0.3.36"
REQUIREMENTS = {"tinker": ROOT / "conformance/python/requirements/0.36.0.txt", "torch": ROOT / "bench/requirements/torch.txt"}
# The engine, and what exports the GGUF files that it reads.
GGUF_PROGRAMS = [("tinkrs-engine", "--example", "measure"),
                 *([] if os.environ.get("TINKRS_BENCH_GGUF") else [("tinkrs-cli", "--bin", "tinkrs")])]
# Section: cargo's names of the programs, and what else it needs.
PROGRAMS = {
    "client": [("tinkrs", "--example", "load"), ("tinkrs-testkit", "--example", "null_server")],
    "python": [("tinkrs-testkit", "--example", "null_server")],
    "wire": [("tinkrs-wire", "--bench", "wire")],
    "engine": [("tinkrs-engine", "--example", "measure")],
    "limits": GGUF_PROGRAMS,
    "llama": GGUF_PROGRAMS,
    "server": [("tinkrs-server", "--bench", "server"), ("tinkrs-cli", "--bin", "tinkrs"), ("tinkrs", "--example", "load")],
    "endpoints": [("tinkrs-cli", "--bin", "tinkrs")],
    "growth": [("tinkrs", "--example", "load"), ("tinkrs-testkit", "--example", "null_server"),
               ("tinkrs-engine", "--example", "measure"), ("tinkrs-server", "--bench", "server"), ("tinkrs-cli", "--bin", "tinkrs")],
    "studio": [("tinkrs-cli", "--bin", "tinkrs")],
}
NEEDS = {"client": ["tinker"], "python": ["tinker", "package"], "wire": ["tinker"], "engine": ["torch", "models", "shape"],
         "limits": ["models", "shape", "gguf"], "llama": ["models", "llama", "shape", "large", "gguf"],
         "server": ["tinker", "skyrl", "models"], "endpoints": ["models", "llama"],
         "growth": ["tinker", "torch", "models"], "studio": []}


def call(command, cwd=ROOT, **more):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-6000:]}")
    return done.stdout


def interpreter(name):
    """Returns a Python that has the packages, installing them first unless they are there."""
    if given := os.environ.get(f"TINKRS_BENCH_{name.upper()}"):
        return Path(given).absolute()
    venv, wanted = CACHE / "bench" / name, REQUIREMENTS[name].read_text()
    stamp = venv / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"installing {name} into {venv}")
        shutil.rmtree(venv, ignore_errors=True)
        call([sys.executable, "-m", "venv", venv])
        call([venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
              "--no-deps", "-r", REQUIREMENTS[name]])
        stamp.write_text(wanted)  # Last, so that an interrupted installation starts over.
        say(f"installed {name}")
    return venv / "bin/python"


def skyrl():
    """Returns the environment of SkyRL, or nothing where it cannot be installed: few machines have to have it."""
    say("installing skyrl unless it is there")
    try:
        return Path(call([ROOT / "conformance/skyrl/install"]).strip())
    except Failed as failure:
        say(f"goes on without SkyRL, since it does not install here: {failure}")
        return None


def llama():
    """Returns llama.cpp's server, building it from the source package of llama-cpp-python unless it is there."""
    if given := os.environ.get("TINKRS_LLAMA_SERVER"):
        return Path(given).absolute()
    folder = CACHE / "bench/llama"
    server = folder / "build/bin/llama-server"
    if not server.exists():
        say(f"building llama.cpp in {folder}, which takes ten minutes")
        shutil.rmtree(folder, ignore_errors=True)
        call([sys.executable, "-m", "venv", folder])
        tool = folder / "bin"
        call([tool / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "cmake", "ninja", "scikit-build-core"])
        call([tool / "python", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", folder, LLAMA])
        (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
        shutil.unpack_archive(archive, folder / "source", filter="data")
        (source,) = (folder / "source").glob("*/vendor/llama.cpp")
        path = {**os.environ, "PATH": f"{tool}:{os.environ['PATH']}"}
        off = ["LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_APP"]
        call([tool / "cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
              *(f"-D{name}=OFF" for name in off)], env=path)
        call([tool / "ninja", "-C", folder / "build", "llama-server"], env=path)
    return server


def models():
    """Returns the folder of the models, fetching them first unless they are there."""
    if given := os.environ.get("TINKRS_MODELS"):
        return Path(given).absolute()
    folder = CACHE / "models"
    if not all((folder / name / "config.json").exists() for name in (STORIES, MINIMIND, SMOLLM)):
        say(f"fetching models into {folder}")
        call([ROOT / "conformance/models/get-models", folder, "stories15M", "minimind", "smollm2"])
    return folder


def write_shape(name, programs, models):
    """Writes a model with random weights beside the others, unless it is there."""
    folder = models / name
    if (folder / "tokenizer.json").exists():
        return
    say(f"writing {folder}")
    folder.mkdir(exist_ok=True)
    call([programs["measure"], SHAPES[name], "write", folder])
    # llama.cpp loads no file without a tokenizer.
    call([ROOT / "conformance/models/get-models", models, "qwen3-tokenizer"])
    for file in ("tokenizer_config.json", "tokenizer.json"):
        shutil.copy(models / "qwen3-tokenizer" / file, folder)


def gguf_files(names, programs, models):
    """Returns the folder of the GGUF files of some models, exporting them first unless they are there."""
    if given := os.environ.get("TINKRS_BENCH_GGUF"):
        return Path(given).absolute()
    folder = CACHE / "bench/gguf"
    folder.mkdir(parents=True, exist_ok=True)
    for model in names:
        for name in ("bf16", "q8_0", "q4_k_m"):
            file = folder / f"{model}-{name}.gguf"
            if not file.exists():
                say(f"exporting {file.name}")
                call([programs["tinkrs"], "export", models / model, "--to", folder / name, "--format", "gguf", "--quantize", name,
                      "--overwrite"])
                (folder / name / "model.gguf").rename(file)
    return folder


def profile_of(tree):
    """The profile of binaries that are handed out. Commits before it was made hand out their release build."""
    has_own = "[profile.dist]" in (tree / "Cargo.toml").read_text()
    return "dist" if has_own else "release"


def build(sections, tree=ROOT, **more):
    """Builds the programs in one go, so that they share their dependencies. Returns their paths by name."""
    programs = sorted({program for section in sections for program in PROGRAMS[section]})
    given = os.environ.get("TINKRS_BENCH_BINARY")
    if given and [name for _, _, name in programs] == ["tinkrs"]:
        return {"tinkrs": Path(given).absolute()}
    # A quick run shows that everything works, and uses what tests have compiled.
    profile = [] if QUICK else ["--profile", profile_of(tree)]
    command = ["cargo", "build", *profile, "--locked", "--message-format=json-render-diagnostics"]
    for package, kind, name in programs:
        command += ["-p", package, kind, name]
    say("building " + ", ".join(name for _, _, name in programs))
    found = {}
    for line in call(command, cwd=tree, **more).splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            found[message["target"]["name"]] = Path(message["executable"])
    if missing := [name for _, _, name in programs if name not in found]:
        raise Failed(f"cargo built no {', '.join(missing)}")
    say("built")
    return found


def python_package():
    """Returns the folder of our Python package, with its extension module built."""
    profile, folder = ("dev", "debug") if QUICK else ("dist", "dist")
    package, target = ROOT / "python/src", Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute() / "python"
    say("building the extension module of the Python package")
    call(["cargo", "build", "--quiet", "--locked", "--manifest-path", ROOT / "python/native/Cargo.toml", "--profile", profile,
          "--target-dir", target])
    shutil.copy(target / folder / "lib_native.so", package / "tinkrs/_native.abi3.so")
    return package


class Tools:
    """Paths of everything that the sections use."""

    def __init__(self, sections):
        needs = {need for section in sections for need in NEEDS[section]}
        # Compiling takes the processor, installing the network.
        with ThreadPoolExecutor(1) as background:
            installing = background.submit(self.install, needs)
            self.programs = build(sections)
            installing.result()
        self.python_package = python_package() if "package" in needs else None
        shapes = [] if QUICK else [name for need, name in (("shape", QWEN_SHAPE), ("large", LARGE_SHAPE)) if need in needs]
        for name in shapes:
            write_shape(name, self.programs, self.models)
        self.gguf = gguf_files([SMOLLM, *shapes], self.programs, self.models) if "gguf" in needs else None

    def install(self, needs):
        self.tinker = interpreter("tinker") if "tinker" in needs else None
        self.torch = interpreter("torch") if "torch" in needs else None
        self.models = models() if "models" in needs else None
        self.python = sys.executable
        self.skyrl = skyrl() if "skyrl" in needs else None
        self.llama = llama() if "llama" in needs else None
