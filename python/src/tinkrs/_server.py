"""A ``tinkrs serve`` process that lives as long as the program that started it."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ._faults import FaultRules
from ._program import find_program

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_GREETING = "listening on "
_STOP_SECONDS = 15.0
_PREFIX = "tinkrs-"
# A folder that is younger than this may be one whose process has not locked it yet.
_ABANDONED_SECONDS = 3600.0


class ServerError(RuntimeError):
    """The server did not start, or refused something. The message has what it said."""


def serve(
    models: Mapping[str, str | os.PathLike[str]] | Sequence[str] | None = None,
    faults: FaultRules | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    key: str = "tml-local",
    options: Sequence[str] = (),
    start_timeout: float = 120.0,
) -> Server:
    """Starts a Tinker server on this machine, at a free port of 127.0.0.1.

    :param models: what to serve: folders or GGUF files by name, or names that ``tinkrs models list`` has. The built-in
        ``tinkrs/nano`` unless given.
    :param faults: what is to go wrong from the start. See :meth:`Server.faults`.
    :param data_dir: where runs and checkpoints are kept. A temporary folder that goes with the server unless given.
    :param key: the key that :attr:`Server.key` names; the server takes any that begins with ``tml-``.
    :param options: further options of ``tinkrs serve``.

    The server ends with :meth:`Server.stop`, at the end of a ``with`` block, when the returned object is collected, and when
    this process ends, however it does.
    """
    server = Server(models, data_dir=data_dir, key=key, options=options, start_timeout=start_timeout)
    try:
        server.start()
        if faults is not None:
            server.set_faults(faults)
    except BaseException:
        server.stop()
        raise
    return server


class Server:
    """A running server. :func:`serve` makes one."""

    key: str
    """A key for clients."""

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str]] | Sequence[str] | None,
        *,
        data_dir: str | os.PathLike[str] | None,
        key: str,
        options: Sequence[str],
        start_timeout: float,
    ) -> None:
        if not isinstance(key, str) or not key.startswith("tml-"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"the key is {key!r}: expected one that begins with 'tml-'")
        if isinstance(options, str):
            raise TypeError(f"options is a string: expected {options.split()!r}")
        self.key = key
        self._start_timeout = start_timeout
        # Paths mean the same when the server starts again, wherever the program has gone meanwhile.
        self._folder = _current_folder()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._hold = _hold(folder)
        _remove_abandoned(folder.parent)
        self._processes: list[subprocess.Popen[str]] = []
        weakref.finalize(self, _end, self._processes, folder, self._hold, os.getpid())
        self.data_dir = Path(data_dir).absolute() if data_dir is not None else folder / "data"
        self._log_path = folder / "log"
        self._log_path.touch(mode=0o600)
        self._admin_key = f"tml-admin-{secrets.token_hex(16)}"
        admin_keys = folder / "admin-keys"
        admin_keys.touch(mode=0o600)
        admin_keys.write_text(self._admin_key + "\n")
        self._command = [find_program(), "serve", "--stop-with-stdin", "--log", "info"]
        self._command += ["--data-dir", str(self.data_dir), "--admin-key-file", str(admin_keys)]
        for model in _model_options(models):
            self._command += ["--model", model]
        self._command += options
        self._faults: bytes | None = None
        self._address: str | None = None
        self._owner_pid = os.getpid()
        self._changing = threading.RLock()
        _servers.add(self)

    @property
    def url(self) -> str:
        """The address for ``TINKER_BASE_URL`` or ``ServiceClient(base_url=...)``. It stays the same after a restart."""
        if self._address is None:
            raise ServerError("the server has not started")
        return self._address

    @property
    def pid(self) -> int | None:
        """The process id of the server, or ``None`` if it does not run."""
        return next((process.pid for process in self._processes if process.poll() is None), None)

    def start(self) -> None:
        """Starts the server, or starts it again where it was and with its faults, after :meth:`stop` or :meth:`kill`."""
        with self._changing:
            if not self._runs():
                self._start()

    def _runs(self) -> bool:
        if self.pid is None or self._address is None:
            return False
        # A process that was killed a moment ago may not have ended yet. One that answers has not been.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(f"{self.url}/api/v1/healthz", timeout=1).close()
        except (OSError, http.client.HTTPException):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[0].wait(1)
        return self.pid is not None

    def _start(self) -> None:
        address = "127.0.0.1:0" if self._address is None else self._address.removeprefix("http://")
        with self._log_path.open("a") as log:
            before = log.tell()
            process = subprocess.Popen(
                [*self._command, "--addr", address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
            )
        self._processes[:] = [process]
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        reader.start()
        try:
            first = lines.get(timeout=self._start_timeout)
        except queue.Empty:
            first = f"(nothing within {self._start_timeout:g} s)"
        if not first.startswith(_GREETING):
            # Asked to stop, it would wait for what it is doing.
            _kill(process)
            said = self._log_since(before)[-4000:].strip()
            raise ServerError(f"`tinkrs serve` did not start: {first.strip()}\n{said}")
        self._address = first.removeprefix(_GREETING).strip()
        if self._faults is not None:
            self._send_faults(self._faults)

    def stop(self) -> None:
        """Stops the server. What was in a temporary folder goes with it when this object does."""
        # A forked child has a copy of this object, and no say over the server.
        if self._owner_pid == os.getpid():
            with self._changing:
                for process in self._processes:
                    _stop(process)

    def kill(self) -> None:
        """Kills the server in the middle of whatever it does, as a crash would. :meth:`start` continues."""
        if self._owner_pid == os.getpid():
            with self._changing:
                for process in self._processes:
                    _kill(process)

    def logs(self) -> str:
        """Returns what the server has logged so far: a line of JSON for each request."""
        return self._log_path.read_text(errors="replace")

    def log_size(self) -> int:
        """Returns how many bytes the server has logged so far, for :meth:`transcript`."""
        return self._log_path.stat().st_size

    def transcript(self, since: int = 0) -> list[str]:
        """Returns a line for each request since the log had this size: time, method, path, status, duration."""
        return [_transcript_line(line) for line in self._log_since(since).splitlines()]

    def _log_since(self, since: int) -> str:
        with self._log_path.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def set_faults(self, faults: FaultRules) -> None:
        """Replaces the faults that the server injects, now and when it has been started again."""
        self._apply_faults(json.dumps(faults).encode())

    def clear_faults(self) -> None:
        """Injects no more faults."""
        self._apply_faults(None)

    @contextlib.contextmanager
    def faults(self, faults: FaultRules) -> Generator[None, None, None]:
        """Injects faults within a ``with`` block: ``{"rules": [{"endpoint": "asample", "fault": 429, "every": 3}]}``.

        What was injected before is injected again after it.
        """
        with same_faults_afterwards(self):
            self.set_faults(faults)
            yield

    def _apply_faults(self, faults: bytes | None) -> None:
        # A server that does not run has none, and is told when it starts.
        if self.pid is not None:
            self._send_faults(faults)
        self._faults = faults

    def _send_faults(self, faults: bytes | None) -> None:
        request = urllib.request.Request(
            f"{self.url}/admin/faults",
            data=faults,
            method="DELETE" if faults is None else "PUT",
            headers={"X-API-Key": self._admin_key},
        )
        # A proxy of the environment is not asked about this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30):
                pass
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                detail = json.loads(detail)["detail"]
            raise ServerError(f"the server refused the faults: {detail}") from None
        except OSError as error:
            raise ServerError(f"the server could not be told of the faults: {error}") from None

    def _let_go(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<tinkrs.Server {self._address or 'not started'}>"


@contextlib.contextmanager
def same_faults_afterwards(server: Server) -> Generator[None, None, None]:
    """Leaves the faults of a server as they are now."""
    before = server._faults
    try:
        yield
    finally:
        if server._faults is not before:
            server._apply_faults(before)


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _end(processes: list[subprocess.Popen[str]], folder: Path, hold: IO[bytes] | None, pid: int) -> None:
    """Stops the server of an object that is collected, or of a program that ends, and then removes its files."""
    if os.getpid() == pid:
        for process in processes:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)
        if hold is not None:
            hold.close()


def _hold(folder: Path) -> IO[bytes] | None:
    """Locks a folder for as long as this process lives, however it ends. Forked children have no part in it."""
    if fcntl is None:
        return None
    held = (folder / "in-use").open("wb")
    with contextlib.suppress(OSError):
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def _remove_abandoned(parent: Path) -> None:
    """Removes the folders of processes that were killed, which could not do it."""
    if fcntl is None:
        return
    own = {_identity(os.fstat(held.fileno())) for server in _servers if (held := server._hold) is not None}
    for mark in parent.glob(f"{_PREFIX}*/in-use"):
        # What cannot be looked at is somebody else's. To close a file gives up the locks of this process.
        with contextlib.suppress(OSError):
            if _identity(mark.stat()) in own or time.time() - mark.parent.stat().st_mtime < _ABANDONED_SECONDS:
                continue
            with mark.open("r+b") as held:
                fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(mark.parent, ignore_errors=True)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # It has been removed, and needs to be there for relative paths alone.
        return None


def _model_options(models: Any) -> list[str]:
    if models is None:
        return []
    if isinstance(models, (str, os.PathLike)):
        raise TypeError(f"models is {models!r}: expected [NAME] or {{NAME: FOLDER}}")
    if not isinstance(models, Mapping):
        return [str(name) for name in models]
    for name, path in models.items():
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"models[{name!r}] is {path!r}: expected the path of a folder or of a GGUF file")
    return [f"{name}={os.fspath(path)}" for name, path in models.items()]


def _read_lines(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Passes the first line on, and takes the others so that the server never waits for a reader."""
    assert process.stdout is not None
    with process.stdout as stdout:
        lines.put(stdout.readline() or "(it ended)")
        for _ in stdout:
            pass


def _transcript_line(line: str) -> str:
    try:
        event = json.loads(line)
        fields = event["fields"]
        clock = event["timestamp"][11:23]
        return f"{clock}  {fields['method']:6} {fields['route']:40} {fields['status']}  {fields['duration_ms']:8.1f} ms"
    except (ValueError, KeyError, TypeError):
        return line


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """Closes a forked child's end of the pipes: a server stops when the last one is closed."""
    for server in _servers:
        server._let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
