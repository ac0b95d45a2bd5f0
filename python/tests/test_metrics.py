"""Numbers of a program, beside those of the server."""

import json
import urllib.request

import pytest
import tinker

import tinkrs


def read(server, run):
    """The last point of each series by its name."""
    request = urllib.request.Request(
        f"{server.url}/api/v1/training_runs/{run}/metrics", headers={"X-API-Key": server.key}
    )
    with urllib.request.urlopen(request) as answer:
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
        tinkrs.log_metrics("no-such-run", 1, {"a": 1}, url=server.url, key=server.key)
