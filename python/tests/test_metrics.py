"""Numbers of a program, beside those of the server."""

import contextlib
import http.server
import json
import threading
import types
import urllib.request
import warnings

import pytest
import tinker

import tinkrs


def read(server, run):
    """The last point of each series by its name."""
    request = urllib.request.Request(
        f"{server.url}/api/v1/training_runs/{run}/metrics", headers={"X-API-Key": server.key}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        series = json.load(answer)["series"]
    return {one["name"]: (one["source"], one["points"][-1][:2]) for one in series}


def test_what_an_unmodified_client_does_and_what_its_program_reports_are_in_the_same_place():
    with tinkrs.serve() as server:
        client = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        training = client.create_lora_training_client("tinkrs/nano", rank=4)
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints([1, 2, 3]),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(data=[2, 3, 4], dtype="int64", shape=[3]),
                "weights": tinker.TensorData(data=[0.0, 1.0, 1.0], dtype="float32", shape=[3]),
            },
        )
        for step in (1, 2):
            training.forward_backward([datum], "cross_entropy").result()
            training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
            tinkrs.log_metrics(training, step, {"reward": step / 2})
        found = read(server, training.model_id)
        assert found["reward"] == ("client", [2, 1.0])
        source, (step, loss) = found["loss"]
        assert (source, step) == ("server", 2) and loss > 0
        tinkrs.log_metrics(training.model_id, 2, {"reward": 3}, url=server.url, key=server.key)
        assert read(server, training.model_id)["reward"] == ("client", [2, 3.0])
        with pytest.raises(ValueError, match="without commas"):
            tinkrs.log_metrics(training, 2, {"a,b": 1})
        # A loop that logs its loss goes on when the loss is not a number.
        with pytest.warns(RuntimeWarning, match="'a' is nan"):
            tinkrs.log_metrics(training, 3, {"a": float("nan"), "reward": 4})
        found = read(server, training.model_id)
        assert found["reward"] == ("client", [3, 4.0]) and "a" not in found
        with pytest.raises(TypeError, match="'a' is 'high'"):
            tinkrs.log_metrics(training, 3, {"a": "high"})
        with pytest.raises(ValueError, match="no model `no-such/run`"):
            tinkrs.log_metrics("no-such/run", 1, {"a": 1}, url=server.url, key=server.key)


def test_a_report_reaches_a_server_that_starts_again_and_counts_once(tmp_path):
    with tinkrs.serve(data_dir=tmp_path / "data") as server:
        training = a_run(server)
        tinkrs.log_metrics(training, 1, {"reward": 1.0})
        server.kill()
        later = threading.Thread(target=server.start)
        # In the midst of the first attempts, which are refused.
        later.start()
        tinkrs.log_metrics(training, 2, {"reward": 2.0})
        later.join()
        assert read(server, training.model_id)["reward"] == ("client", [2, 2.0])


def test_a_server_that_is_gone_costs_a_warning_and_no_time_after_that():
    with tinkrs.serve() as server:
        training = a_run(server)
        server.kill()
        with pytest.warns(RuntimeWarning, match=r"127\.0\.0\.1:\d+ could not be reached: .* within 0\.3 s; not reported of step 1: a, b"):
            tinkrs.log_metrics(training, 1, {"a": 1, "b": 2}, timeout=0.3)
        # It would wait for an hour if it waited.
        with pytest.warns(RuntimeWarning, match="not reported of step 2: a"):
            tinkrs.log_metrics(training, 2, {"a": 1}, timeout=3600)
        server.start()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tinkrs.log_metrics(training, 3, {"a": 1}, timeout=3600)
        assert read(server, training.model_id)["a"] == ("client", [3, 1.0])


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with tinkrs.serve() as server:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        training = a_run(server)
        monkeypatch.delenv("no_proxy")
        tinkrs.log_metrics(training, 1, {"a": 1}, timeout=0)
        assert "a" in read(server, training.model_id)


def test_more_metrics_than_a_request_may_have_are_all_reported():
    with tinkrs.serve() as server:
        training = a_run(server)
        tinkrs.log_metrics(training, 1, {f"m{n}": n for n in range(150)})
        found = read(server, training.model_id)
        assert all(found[f"m{n}"] == ("client", [1, n]) for n in range(150))


def test_clients_of_earlier_versions_name_their_server(monkeypatch):
    """They have the address elsewhere; ``TINKER_BASE_URL`` may name another server."""
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-another")
    with tinkrs.serve() as server:
        run = a_run(server).model_id
        holder = types.SimpleNamespace(_constructor_kwargs={"base_url": server.url, "api_key": server.key})
        tinkrs.log_metrics(types.SimpleNamespace(model_id=run, holder=holder), 1, {"a": 1}, timeout=0)
        assert "a" in read(server, run)


def a_run(server):
    client = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    return client.create_lora_training_client("tinkrs/nano", rank=4)


@contextlib.contextmanager
def answering(*answers):
    """The address of a server that gives these answers (status, headers, body) in turn, the last one ever after."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            status, headers, body = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def report(url, **more):
    tinkrs.log_metrics("run", 1, {"a": 1}, url=url, key="tml-local", **more)


@pytest.mark.parametrize(
    "bad",
    [
        (429, {"Retry-After": "0.01"}, b'{"detail": "slow down"}'),
        (503, {}, b"<html>starting</html>"),
        (200, {"Content-Length": "100"}, b'{"cut'),
    ],
)
def test_what_passes_is_asked_again_with_the_same_bytes(bad):
    with answering(bad, bad, (200, {}, b"{}")) as (url, asked):
        report(url)
    assert len(asked) == 3 and len(set(asked)) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {}, b"<html>Welcome!</html>"), "is no Tinker server: it answered a report with '<html>Welcome!"),
        ((307, {"Location": "https://elsewhere.example/"}, b""), "redirects to https://elsewhere.example/; give the address"),
        ((302, {"Location": "http://127.0.0.1:9/"}, b""), "redirects to http://127.0.0.1:9/; give the address"),
        ((401, {}, b'{"detail": "who is there?"}'), r"refused the report \(401\): who is there\?"),
    ],
)
def test_a_server_that_is_another_one_is_named(answer, words):
    with answering(answer) as (url, asked), pytest.raises(ValueError, match=f"{url} .*{words}"):
        report(url)
    assert len(asked) == 1


def test_a_server_without_reports_is_asked_once_and_told_of():
    with answering((404, {}, b'{"detail": "Not Found"}')) as (url, asked):
        with pytest.warns(RuntimeWarning, match=f"{url} takes no reports .*; not reported of step 1: a"):
            report(url)
        report(url)
    assert len(asked) == 1


def test_the_hosted_service_is_left_alone(monkeypatch):
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    training = types.SimpleNamespace(model_id="run", holder=types.SimpleNamespace())
    with pytest.warns(RuntimeWarning, match="nothing is sent there"):
        tinkrs.log_metrics(training, 1, {"a": 1})
    tinkrs.log_metrics(training, 2, {"a": 1})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"url": "127.0.0.1:8000"}, "url is '127.0.0.1:8000': expected an address such as http"),
        ({"url": "ftp://x"}, "url is"),
        ({"url": "http://"}, "url is"),
        ({"url": "http://x:99999"}, "url is"),
        ({"url": "http://x y"}, "url is"),
        ({"key": "tml-a\r\nX-Evil: 1"}, "the key has characters"),
        ({"step": 1.5}, "the step is 1.5: expected a whole number"),
        ({"step": -1}, "the step is -1"),
        ({"metrics": [1]}, "metrics is"),
        ({"metrics": {1: 1}}, "a metric has the name 1"),
        ({"metrics": {"a": "1"}}, "'a' is '1'"),
        ({"metrics": {"a": None}}, "'a' is None"),
        ({"run": None}, "run is None"),
    ],
)
def test_wrong_arguments_are_named(changed, words):
    arguments = {"run": "run", "step": 1, "metrics": {"a": 1}, "url": "http://127.0.0.1:9", "key": "tml-local"} | changed
    with pytest.raises((TypeError, ValueError), match=words) as error:
        tinkrs.log_metrics(**arguments)
    assert "Evil" not in str(error.value)


def test_without_a_server_or_a_key_it_is_said_which(monkeypatch):
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ValueError, match="TINKER_BASE_URL"):
        tinkrs.log_metrics("run", 1, {"a": 1})
    with pytest.raises(ValueError, match="TINKER_API_KEY"):
        tinkrs.log_metrics("run", 1, {"a": 1}, url="http://127.0.0.1:9")


def test_a_report_of_nothing_finite_sends_nothing():
    with answering((200, {}, b"{}")) as (url, asked):
        with pytest.warns(RuntimeWarning, match="left out"):
            tinkrs.log_metrics("run", 1, {"a": float("inf"), "b": 10**400}, url=url, key="tml-local")
    assert not asked
