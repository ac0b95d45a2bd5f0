"""Fixtures that give a test a Tinker server of its own.

    def test_my_loop(tinker_service_client):
        training = tinker_service_client.create_lora_training_client("tinkrs/nano", rank=8)
        ...

    @pytest.mark.tinker_faults(rate_limit=0.2, cut=0.05)
    def test_my_loop_survives_faults(tinker_service_client):
        ...

Each pytest process has one server, so tests run in parallel with pytest-xdist. When a test that used it fails, the report
has what the server answered during that test.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from ._faults import fault_rules
from ._server import Server, same_faults_afterwards, serve

if TYPE_CHECKING:
    import tinker

_MOST_LINES = 200
_used = pytest.StashKey[tuple[Server, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("tinkrs_models", "models of the Tinker server, a NAME=FOLDER on each line", type="linelist", default=[])
    parser.addini("tinkrs_options", "further options of `tinkrs serve`", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tinker_faults(rate_limit=0, server_error=0, cut=0, reset=0, endpoints=..., rules=[], seed=0): the Tinker server of "
        "the test fails by chance, as given",
    )


@pytest.fixture(scope="session")
def tinker_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """A Tinker server on this machine, for all tests of this process."""
    models = pytestconfig.getini("tinkrs_models")
    with serve(models or None, options=pytestconfig.getini("tinkrs_options")) as server:
        yield server


@pytest.fixture
def tinker_service_client(
    tinker_server: Server, monkeypatch: pytest.MonkeyPatch
) -> tinker.ServiceClient:
    """A client of the official SDK, with the server's address and key; the environment names them, too."""
    import tinker

    monkeypatch.setenv("TINKER_BASE_URL", tinker_server.url)
    monkeypatch.setenv("TINKER_API_KEY", tinker_server.key)
    # The SDK would ask a proxy of the environment even for this machine.
    excepted = [os.environ.get(name) for name in ("no_proxy", "NO_PROXY")]
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, ",".join([*filter(None, excepted), "127.0.0.1"]))
    return tinker.ServiceClient(base_url=tinker_server.url, api_key=tinker_server.key)


@pytest.fixture(autouse=True)
def _tinker_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("tinker_faults")
    if marker is None and "tinker_server" not in request.fixturenames:
        yield
        return
    server: Server = request.getfixturevalue("tinker_server")
    server.start()  # A test before may have killed it.
    request.node.stash[_used] = (server, server.log_size())
    with same_faults_afterwards(server):  # Those that the test sets by itself end with it, too.
        if marker is not None:
            if marker.args:
                raise pytest.UsageError("tinker_faults takes names: @pytest.mark.tinker_faults(rate_limit=0.2)")
            server.set_faults(fault_rules(**marker.kwargs))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = item.stash.get(_used, None)
    if used is not None and report.failed:
        server, since = used
        lines = server.transcript(since)
        left_out = len(lines) - _MOST_LINES
        if left_out > 0:
            lines = [f"({left_out} earlier lines)", *lines[-_MOST_LINES:]]
        report.sections.append(("Tinker server", "\n".join(lines)))
    return report
