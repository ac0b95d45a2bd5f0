"""The server as a Python program has it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import tinkrs


def is_running(pid: int) -> bool:
    """Whether a process runs. One that has ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def test_a_server_ends_with_its_block_and_its_files_with_the_object():
    with tinkrs.serve() as server:
        pid, data_dir = server.pid, server.data_dir
        assert server.url.startswith("http://127.0.0.1:")
        assert data_dir.is_dir()
    assert not is_running(pid)
    del server
    assert not data_dir.exists()


def test_a_server_ends_with_the_program_that_started_it_however_it_ends():
    program = "import tinkrs, time; server = tinkrs.serve(); print(server.pid, flush=True); time.sleep(600)"
    python = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(python.stdout.readline())
    assert is_running(pid)
    python.send_signal(signal.SIGKILL)
    python.wait()
    wait_until_gone(pid)


def test_a_program_that_ends_by_itself_leaves_no_files(tmp_path):
    program = "import tinkrs; server = tinkrs.serve(); print(server.pid, flush=True)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert not is_running(int(output.stdout)), "it has ended before its files went"
    assert not list(tmp_path.iterdir()) and not output.stderr


def test_a_server_that_is_let_go_of_leaves_no_open_files():
    program = """
import tinkrs
server = tinkrs.serve()
server.kill()
server.start()
server.stop()
del server
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    output = subprocess.run(command, capture_output=True, text=True)
    assert (output.returncode, output.stderr) == (0, "")


def child_exits():
    sys.exit(0)


def test_a_forked_child_neither_ends_a_server_nor_keeps_it():
    with tinkrs.serve() as server:
        child = multiprocessing.get_context("fork").Process(target=child_exits)
        child.start()
        child.join()
        forked = os.fork()
        if forked == 0:
            # With all that ends of a process that exits by itself, and a copy of the server's pipe until then.
            os.execl("/bin/sh", "sh", "-c", "sleep 600")
        try:
            assert server.pid is not None
            assert server.data_dir.is_dir()
            server.stop()
        finally:
            os.kill(forked, signal.SIGKILL)
            os.waitpid(forked, 0)
        assert server.pid is None


def test_a_server_that_was_killed_starts_again_where_it_was():
    with tinkrs.serve() as server:
        url, first = server.url, server.pid
        server.kill()
        assert server.pid is None
        server.start()
        assert server.url == url
        assert server.pid not in (None, first)


def test_a_server_that_somebody_else_has_just_killed_is_started_again():
    with tinkrs.serve() as server:
        for _ in range(5):
            first = server.pid
            # It may run for a moment after this call.
            os.kill(first, signal.SIGKILL)
            server.start()
            assert server.pid not in (None, first)


def test_paths_mean_the_same_after_a_restart_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with tinkrs.serve(data_dir="data") as server:
        monkeypatch.chdir(tmp_path / "b")
        server.kill()
        server.start()
        assert server.data_dir == tmp_path / "a" / "data" and server.data_dir.is_dir()
        assert not list((tmp_path / "b").iterdir())


def test_faults_are_there_again_after_a_restart_and_end_with_their_block():
    def fails(server):
        request = urllib.request.Request(f"{server.url}/api/v1/get_server_capabilities", headers={"X-API-Key": server.key})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(request).close()
        except urllib.error.HTTPError as error:
            return error.code
        return None

    def always(status):
        return {"rules": [{"endpoint": "get_server_capabilities", "fault": status}]}

    with tinkrs.serve(faults=always(503)) as server:
        assert fails(server) == 503
        with server.faults(always(500)):
            assert fails(server) == 500
            server.kill()
            server.start()
            assert fails(server) == 500
        assert fails(server) == 503, "what there was before the block"
        with server.faults(always(500)):
            server.kill()
        server.start()
        assert fails(server) == 503
        server.stop()
        server.clear_faults()
        server.start()
        assert fails(server) is None


def test_what_does_not_start_says_why(tmp_path):
    with pytest.raises(tinkrs.ServerError, match="no/such"):
        tinkrs.serve({"mine": tmp_path / "no/such"})
    with pytest.raises(tinkrs.ServerError, match="--no-such-option"):
        tinkrs.serve(options=["--no-such-option"])
    for models, words in [
        ("nano", r"models is 'nano': expected \[NAME\] or"),
        (tmp_path, r"expected \[NAME\] or \{NAME: FOLDER\}"),
        ({"mine": None}, r"models\['mine'\] is None: expected the path"),
    ]:
        with pytest.raises(TypeError, match=words):
            tinkrs.serve(models)
    with pytest.raises(TypeError, match=r"expected \['--threads', '1'\]"):
        tinkrs.serve(options="--threads 1")


def test_a_key_that_no_client_could_use_is_refused():
    for key in ("sk-1", None):
        with pytest.raises(ValueError, match=f"the key is {key!r}"):
            tinkrs.serve(key=key)


def test_folders_of_programs_that_were_killed_are_removed_by_later_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "import tinkrs, time; server = tinkrs.serve(); print(server.data_dir.parent, flush=True); time.sleep(600)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    python = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    folder = Path(python.stdout.readline().strip())
    other = tmp_path / "tinkrs-of-somebody-else"
    other.mkdir()
    for kept in (folder, other):
        os.utime(kept, (0, 0))
    with tinkrs.serve():
        assert folder.is_dir(), "it is in use"
    python.kill()
    python.wait()
    with tinkrs.serve() as server:
        assert not folder.exists() and server.data_dir.is_dir()
    assert other.is_dir()


def test_faults_that_cannot_be_read_are_refused_with_the_servers_words():
    with tinkrs.serve() as server:
        with pytest.raises(tinkrs.ServerError, match="hang, cut, reset or delay"):
            server.set_faults({"rules": [{"endpoint": "asample", "fault": "nonsense"}]})
    with pytest.raises(tinkrs.ServerError, match="hang, cut, reset or delay"):
        tinkrs.serve(faults={"rules": [{"endpoint": "asample", "fault": 7}]})


def test_the_command_is_there():
    output = subprocess.run([sys.executable, "-m", "tinkrs", "--version"], capture_output=True, text=True, check=True)
    assert output.stdout.startswith("tinkrs ")
