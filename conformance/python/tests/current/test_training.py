"""Training with the official SDK."""

import inspect

import pytest
from conftest import BASE_MODEL
from tinker import types


def loss(output):
    return output.metrics["loss:sum"]


def train(client, batch, steps):
    """Steps one after another, all submitted before the first result is read."""
    passes = []
    for _ in range(steps):
        passes.append(client.forward_backward(batch, "cross_entropy"))
        update = client.optim_step(types.AdamParams(learning_rate=1e-2))
    update.result()
    return [loss(each.result()) for each in passes]


def test_the_server_says_what_it_offers(service):
    models = service.get_server_capabilities().supported_models
    assert [model.model_name for model in models] == ["tinkrs/nano", BASE_MODEL]
    if hasattr(models[0], "trainable"):
        assert models[0].trainable and models[0].sampleable


def test_a_pipelined_loss_falls(training, batch):
    losses = train(training, batch, 20)
    assert losses[-1] < 0.1 * losses[0], losses
    assert all(after < before for before, after in zip(losses, losses[1:])), losses


def test_a_seed_gives_the_same_run(service, batch):
    clients = [
        service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=3) for _ in range(2)
    ]
    first, second = [train(client, batch, 3) for client in clients]
    assert first == second


def test_forward_has_the_loss_of_forward_backward_and_changes_nothing(training, batch):
    forward = training.forward(batch, "cross_entropy").result()
    backward = training.forward_backward(batch, "cross_entropy").result()
    assert loss(forward) == loss(backward)
    assert len(forward.loss_fn_outputs) == len(batch)
    for datum, output in zip(batch, forward.loss_fn_outputs):
        assert len(output["logprobs"].data) == datum.model_input.length
    assert all(key.count(":") == 1 for key in forward.metrics)


def test_many_chunks_are_one_batch(service, batch):
    whole = service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=3)
    large = batch * 400  # more than the client puts into one request
    output = whole.forward_backward(large, "cross_entropy").result()
    assert len(output.loss_fn_outputs) == len(large)
    single = whole.forward(batch, "cross_entropy").result()
    assert loss(output) == pytest.approx(400 * loss(single), rel=1e-4)


def test_gradients_accumulate_until_the_step(service, batch):
    def run(*batches):
        client = service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=3)
        for each in batches:
            client.forward_backward(each, "cross_entropy")
        metrics = client.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics
        return metrics["grad_norm"], loss(client.forward(batch, "cross_entropy").result())

    assert run(batch) == run(batch[:1], batch[1:])


@pytest.mark.parametrize(
    "loss_fn, config",
    [
        ("importance_sampling", None),
        ("ppo", None),
        ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
        ("cispo", None),
        ("dro", {"beta": 0.05}),
    ],
)
def test_policy_losses_raise_what_is_rewarded(training, loss_fn, config):
    sampler = training.save_weights_and_get_sampling_client()
    prompt = [1, 5, 9]
    params = types.SamplingParams(max_tokens=6, seed=1, stop=[])
    samples = sampler.sample(types.ModelInput.from_ints(prompt), 4, params).result().sequences
    data = []
    for index, sample in enumerate(samples):
        tokens = prompt + list(sample.tokens)
        pad = [0.0] * (len(prompt) - 1)
        advantage = 1.0 if index == 0 else -0.2
        data.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={
                    "target_tokens": tokens[1:],
                    "logprobs": pad + list(sample.logprobs),
                    "advantages": pad + [advantage] * len(sample.tokens),
                },
            )
        )

    def logprob_of_first():
        output = training.forward(data[:1], loss_fn, config).result()
        return sum(output.loss_fn_outputs[0]["logprobs"].data[len(prompt) - 1 :])

    before = logprob_of_first()
    for _ in range(3):
        training.forward_backward(data, loss_fn, config)
        training.optim_step(types.AdamParams(learning_rate=5e-3)).result()
    assert logprob_of_first() > before


def test_importance_sampling_starts_with_ratios_of_one(training):
    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=8, seed=2, stop=[])
    sample = sampler.sample(types.ModelInput.from_ints([1, 5]), 1, params).result().sequences[0]
    tokens = [1, 5] + list(sample.tokens)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": [0.0] + list(sample.logprobs),
            "advantages": [0.0] + [1.0] * len(sample.tokens),
        },
    )
    output = training.forward([datum], "importance_sampling").result()
    assert loss(output) == pytest.approx(-len(sample.tokens), abs=1e-3)


def test_the_model_is_described(training):
    info = training.get_info()
    assert info.model_data.model_name == BASE_MODEL
    assert info.lora_rank == 8


def test_a_resumed_run_goes_on_bit_for_bit(service, training, batch):
    train(training, batch, 3)
    path = training.save_state("half").result().path
    uninterrupted = train(training, batch, 4)
    resumed = service.create_training_client_from_state_with_optimizer(path)
    assert train(resumed, batch, 4) == uninterrupted
    fresh = service.create_training_client_from_state(path)
    restarted = train(fresh, batch, 4)
    assert restarted[0] == uninterrupted[0]
    assert restarted != uninterrupted


def test_runs_and_checkpoints_are_listed(service, training):
    has_ttl = "ttl_seconds" in inspect.signature(training.save_state).parameters
    ttl = {"ttl_seconds": 3600} if has_ttl else {}
    path = training.save_state("listed", **ttl).result().path
    rest = service.create_rest_client()
    run_id = path.split("/")[2]
    assert rest.get_training_run(run_id).result().base_model == BASE_MODEL
    assert run_id in [run.training_run_id for run in rest.list_training_runs().result().training_runs]
    (checkpoint,) = rest.list_checkpoints(run_id).result().checkpoints
    assert checkpoint.tinker_path == path
    if has_ttl:
        assert checkpoint.expires_at is not None
    assert path in [each.tinker_path for each in rest.list_user_checkpoints().result().checkpoints]
    assert rest.get_weights_info_by_tinker_path(path).result().lora_rank == 8
