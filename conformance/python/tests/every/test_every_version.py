"""What every version of the official SDK does: train, save, sample, list."""

import sys
import tarfile
import types as python_types
import urllib.request
from importlib.metadata import version

# SDK 0.3.0 imports torch for conversions that these tests do not use. Others look whether it is there.
if version("tinker") == "0.3.0":
    torch = python_types.ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    sys.modules["torch"] = torch

import pytest
import tinker
from tinker import types

PROMPT = [1, 5, 9]


@pytest.fixture(scope="module")
def service():
    return tinker.ServiceClient()


@pytest.fixture
def training(service):
    return service.create_lora_training_client(base_model="tiny", rank=8, seed=7)


def datum(tokens):
    targets = tokens[1:]

    def tensor(data, dtype):
        return types.TensorData(data=data, dtype=dtype, shape=[len(data)])

    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tensor(targets, "int64"),
            "weights": tensor([1.0] * len(targets), "float32"),
        },
    )


BATCH = [datum([1, 5, 9, 2]), datum([1, 6, 8, 4, 3])]


def train(client, steps):
    passes = []
    for _ in range(steps):
        passes.append(client.forward_backward(BATCH, "cross_entropy"))
        update = client.optim_step(types.AdamParams(learning_rate=1e-2))
    update.result()
    return [each.result().metrics["loss:sum"] for each in passes]


def test_a_loss_falls(training):
    losses = train(training, 10)
    assert losses[-1] < 0.2 * losses[0], losses


def test_forward_gives_logprobs(training):
    output = training.forward(BATCH, "cross_entropy").result()
    assert [len(each["logprobs"].data) for each in output.loss_fn_outputs] == [3, 4]


def test_a_loaded_run_goes_on_bit_for_bit(service, training):
    train(training, 2)
    path = training.save_state("half").result().path
    uninterrupted = train(training, 3)
    other = service.create_lora_training_client(base_model="tiny", rank=8, seed=8)
    load = getattr(other, "load_state_with_optimizer", other.load_state)
    load(path).result()
    assert train(other, 3) == uninterrupted


def test_samples_are_repeatable(service, training):
    train(training, 2)
    path = training.save_weights_for_sampler("named").result().path
    sampler = service.create_sampling_client(model_path=path)
    params = types.SamplingParams(max_tokens=6, seed=1)

    def draw():
        response = sampler.sample(types.ModelInput.from_ints(PROMPT), 4, params).result()
        return [list(sequence.tokens) for sequence in response.sequences]

    assert len(draw()) == 4
    assert draw() == draw()


def test_weights_without_a_name_are_sampled(training):
    sampler = training.save_weights_and_get_sampling_client("unnamed")
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()
    assert scores[0] is None and len(scores) == len(PROMPT)


def test_a_bad_token_is_named(training):
    with pytest.raises(Exception, match="99999"):
        training.forward_backward([datum([1, 99_999])], "cross_entropy").result()
    train(training, 1)


@pytest.fixture
def rest(service):
    return service.create_rest_client()


def has(client, name):
    if not hasattr(client, name):
        pytest.skip(f"this version has no {name}")
    return getattr(client, name)


def test_runs_and_checkpoints_are_listed_and_deleted(rest, training):
    path = training.save_state("listed").result().path
    run_id = path.split("/")[2]
    assert rest.get_training_run(run_id).result().base_model == "tiny"
    assert run_id in [run.training_run_id for run in rest.list_training_runs().result().training_runs]
    (checkpoint,) = rest.list_checkpoints(run_id).result().checkpoints
    assert checkpoint.tinker_path == path
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(run_id).result().checkpoints == []


def test_a_checkpoint_is_downloaded_as_an_archive(rest, training):
    get_url = has(rest, "get_checkpoint_archive_url_from_tinker_path")
    path = training.save_weights_for_sampler("archived").result().path
    url = get_url(path).result().url
    with urllib.request.urlopen(url) as response, tarfile.open(fileobj=response, mode="r|*") as archive:
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(archive.getnames())


def test_sessions_are_listed(rest, service, training):
    list_sessions = has(rest, "list_sessions")
    run_id = training.get_info().model_id
    assert run_id.split(":")[0] in list_sessions(limit=100).result().sessions
    assert run_id in rest.get_session(run_id.split(":")[0]).result().training_run_ids


def test_a_checkpoint_is_published(rest, training):
    publish = has(rest, "publish_checkpoint_from_tinker_path")
    path = training.save_state("public").result().path
    publish(path).result()
    (checkpoint,) = rest.list_checkpoints(path.split("/")[2]).result().checkpoints
    assert checkpoint.public
