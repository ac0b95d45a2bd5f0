"""Numbers that a program has computed, shown beside those of the server.

A report is sent again until the server has answered it: the same name and step replace what was there, so nothing is counted
twice. What is wrong with a call is an exception; what is wrong with the server or the network is a warning, as a training run
is worth more than its chart.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import math
import operator
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Mapping
from typing import IO, Any

# The server takes this many in a request.
_IN_A_REQUEST = 64
_LONGEST_PAUSE = 5.0
# Where the official SDK goes unless told otherwise.
_HOSTED = "https://tinker.thinkingmachines.dev"
# For one more look at a server that the last report was waited for in vain.
_LOOK_SECONDS = 5.0

# Servers without the endpoint: asked once.
_without_reports: set[str] = set()
# Servers that did not answer the last report in time.
_silent: set[str] = set()


def log_metrics(
    run: Any,
    step: int,
    metrics: Mapping[str, float],
    *,
    url: str | None = None,
    key: str | None = None,
    timeout: float = 60.0,
) -> None:
    """Reports what was measured at a step, such as a reward, to the server that the run is on.

    :param run: a training client of the official SDK, or the id or name of its run.
    :param step: the step; the server counts those of the optimizer from 1.
    :param metrics: numbers by their names. A metric that was reported of the step before is replaced. One that is not
        finite is left out with a ``RuntimeWarning``: a loss that is no number is no reason to end a program.
    :param url: the server. That of the client unless given, else ``TINKER_BASE_URL``.
    :param key: the key. That of the client unless given, else ``TINKER_API_KEY``.
    :param timeout: for how many seconds a server that does not answer is asked again, such as one that is starting. After
        that the report is given up with a ``RuntimeWarning``, and the next ones do not wait until the server answers again.

    A server that takes no reports, such as the hosted one, is left alone after one ``RuntimeWarning``.

    :raises TypeError, ValueError: if an argument is wrong, there is no server at ``url`` that knows the run, or it refuses
        the report.
    """
    run_id = getattr(run, "model_id", run)
    if not isinstance(run_id, str) or not run_id:
        raise TypeError(f"run is {run!r}: expected a training client or the id of a run")
    number = _step(step)
    found, left_out = _finite(metrics)
    for text in left_out:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    client_url, client_key = _of_client(run)
    server = _server(url or client_url or os.environ.get("TINKER_BASE_URL"))
    if server in _without_reports:
        return
    if server.startswith(_HOSTED):
        _without_reports.add(server)
        warnings.warn(f"{server} takes no reports: nothing is sent there", RuntimeWarning, stacklevel=2)
        return
    key = _key(key or client_key or os.environ.get("TINKER_API_KEY"))
    names = list(found)
    for first in range(0, len(names), _IN_A_REQUEST):
        part = names[first : first + _IN_A_REQUEST]
        body = json.dumps({"step": number, "metrics": {name: found[name] for name in part}}).encode()
        problem = _report(server, run_id, key, body, timeout)
        if problem is not None:
            lost = ", ".join(names[first:][:8]) + (", …" if len(names) - first > 8 else "")
            warnings.warn(f"{problem}; not reported of step {number}: {lost}", RuntimeWarning, stacklevel=2)
            return


def _of_client(run: Any) -> tuple[str | None, str | None]:
    """The address and the key that a training client of the official SDK has been given. It shows them nowhere."""
    holder = getattr(run, "holder", None)
    if holder is None:
        return None, None
    # Versions up to 0.30 have them here.
    given: Mapping[str, Any] = getattr(holder, "_constructor_kwargs", None) or {}
    url = getattr(holder, "_base_url", None) or given.get("base_url") or os.environ.get("TINKER_BASE_URL") or _HOSTED
    return str(url), getattr(holder, "_api_key", None) or given.get("api_key")


def _step(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"the step is {step!r}: expected a whole number") from None
    if number < 0:
        raise ValueError(f"the step is {number}: expected 0 or more")
    return number


def _finite(metrics: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """The metrics that can be reported, and what is to be said of the others."""
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"metrics is {metrics!r}: expected numbers by their names")
    found: dict[str, float] = {}
    left_out: list[str] = []
    for name, value in metrics.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a metric has the name {name!r}: expected text")
        try:
            if isinstance(value, (str, bytes, bytearray)):
                raise TypeError
            number = float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError, RuntimeError):  # PyTorch raises the last of these for a tensor of several numbers.
            raise TypeError(f"the metric {name!r} is {value!r}: expected a number") from None
        if math.isfinite(number):
            found[name] = number
        else:
            left_out.append(f"the metric {name!r} is {number}, and left out")
    return found, left_out


def _server(url: Any) -> str:
    if not url:
        raise ValueError("there is no url: give one, or set TINKER_BASE_URL")
    text = str(url).strip().rstrip("/")
    try:
        parts = urllib.parse.urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole = False
    if not is_whole or any(not "!" <= letter <= "~" for letter in text):
        raise ValueError(f"url is {str(url)!r}: expected an address such as http://127.0.0.1:8000")
    return text


def _key(key: Any) -> str:
    if not key:
        raise ValueError("there is no key: give one, or set TINKER_API_KEY")
    text = str(key).strip()
    # What the headers of a request can have. The key itself is in no message.
    if not text or any(not "!" <= letter <= "~" for letter in text):
        raise ValueError("the key has characters that a key cannot have")
    return text


def _report(server: str, run_id: str, key: str, body: bytes, timeout: float) -> str | None:
    """Sends a report until it is answered. Returns what was wrong with the server, if that was so."""
    address = f"{server}/api/v1/training_runs/{urllib.parse.quote(run_id, safe='')}/metrics"
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(address, body, headers)
    opener = _opener(server)
    is_patient = server not in _silent
    deadline = time.monotonic() + (timeout if is_patient else 0.0)
    pause = 0.1
    while True:
        limit = max(deadline - time.monotonic(), min(_LOOK_SECONDS, timeout), 0.1)
        asked_pause = 0.0
        try:
            with opener.open(request, timeout=limit) as answer:
                _expect_a_report_was_taken(server, answer)
            _silent.discard(server)
            return None
        except urllib.error.HTTPError as error:
            with error:
                detail = _detail(error)
            if error.code == 404 and f"`{run_id}`" in detail:
                raise ValueError(f"{server}: {detail}") from None
            if error.code in (404, 405, 501):
                _without_reports.add(server)
                return f"{server} takes no reports ({error.code}: {detail})"
            if error.code not in (408, 425, 429) and error.code < 500:
                raise ValueError(f"{server} refused the report ({error.code}): {detail}") from None
            reason = f"answered {error.code}: {detail}"
            asked_pause = _retry_after(error)
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = f"could not be reached: {str(cause) or type(cause).__name__}"
        wait = max(pause, asked_pause)
        if time.monotonic() + wait > deadline:
            _silent.add(server)
            waited = f" within {timeout:g} s" if is_patient else ""
            return f"{server} {reason}{waited}"
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: to follow one would send the key elsewhere, and a report without its body."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


def _opener(server: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    # A proxy of the environment is not asked about this machine.
    if is_loopback(urllib.parse.urlsplit(server).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _expect_a_report_was_taken(server: str, answer: IO[bytes]) -> None:
    """Something that answers whatever it is asked is no Tinker server."""
    body = answer.read()
    try:
        is_taken = isinstance(json.loads(body), dict)
    except ValueError:
        is_taken = False
    if not is_taken:
        found = body[:80].decode(errors="replace")
        raise ValueError(f"{server} is no Tinker server: it answered a report with {found!r}")


def _detail(error: urllib.error.HTTPError) -> str:
    """What a server says of a refusal. A proxy in front of it says something else."""
    if 300 <= error.code < 400:
        return f"it redirects to {error.headers.get('Location')}; give the address of the server itself"
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return str(error.reason)


def _retry_after(error: urllib.error.HTTPError) -> float:
    try:
        seconds = float(error.headers.get("Retry-After", ""))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0
