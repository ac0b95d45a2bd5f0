"""Sampling with the official SDK."""

import pytest
from conftest import BASE_MODEL, supervised
from tinker import types

PROMPT = types.ModelInput.from_ints([1, 5, 9])


@pytest.fixture
def sampler(training, batch):
    training.forward_backward(batch, "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-2))
    return training.save_weights_and_get_sampling_client()


def draw(sampler, count=4, **params):
    params = types.SamplingParams(**{"max_tokens": 8, **params})
    return sampler.sample(PROMPT, count, params).result().sequences


def tokens(sequences):
    return [list(sequence.tokens) for sequence in sequences]


def test_a_seed_gives_the_same_samples_and_its_samples_differ(sampler):
    first, second = draw(sampler, seed=11, stop=[]), draw(sampler, seed=11, stop=[])
    assert tokens(first) == tokens(second)
    assert [list(s.logprobs) for s in first] == [list(s.logprobs) for s in second]
    assert len({tuple(each) for each in tokens(first)}) > 1
    assert tokens(draw(sampler, seed=12, stop=[])) != tokens(first)
    if hasattr(first[0], "sequence_id"):
        assert len({sequence.sequence_id for sequence in first + second}) == 8


def test_without_a_seed_samples_are_random(sampler):
    assert tokens(draw(sampler, stop=[])) != tokens(draw(sampler, stop=[]))


def test_logprobs_of_samples_are_those_of_forward(training, sampler):
    for sequence in draw(sampler, seed=5, stop=[]):
        datum = supervised(PROMPT.to_ints() + list(sequence.tokens), 1)
        output = training.forward([datum], "cross_entropy").result().loss_fn_outputs[0]
        trained = list(output["logprobs"].data)[PROMPT.length - 1 :]
        assert list(sequence.logprobs) == pytest.approx(trained, abs=1e-4)


def test_prompt_logprobs_start_with_none_and_are_those_of_forward(training, sampler):
    sequence = [1, 5, 9, 2, 7, 3]
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(sequence)).result()
    assert scores[0] is None and len(scores) == len(sequence)
    output = training.forward([supervised(sequence, 1)], "cross_entropy").result()
    assert scores[1:] == pytest.approx(list(output.loss_fn_outputs[0]["logprobs"].data), abs=1e-4)


def test_stop_tokens_end_a_sample(sampler):
    (free,) = draw(sampler, 1, seed=5, stop=[])
    assert free.stop_reason == "length" and len(free.tokens) == 8
    stop = free.tokens[2]
    (stopped,) = draw(sampler, 1, seed=5, stop=[stop])
    end = list(free.tokens).index(stop) + 1
    assert stopped.stop_reason == "stop"
    assert list(stopped.tokens) == list(free.tokens)[:end]


def test_temperature_zero_always_takes_the_same_tokens(sampler):
    greedy = tokens(draw(sampler, temperature=0.0, stop=[]))
    assert all(each == greedy[0] for each in greedy)


def test_prompt_options_are_honoured(sampler):
    response = sampler.sample(
        PROMPT,
        1,
        types.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
    ).result()
    assert response.prompt_logprobs[0] is None
    assert response.topk_prompt_logprobs[0] is None
    assert [len(row) for row in response.topk_prompt_logprobs[1:]] == [3, 3]


def test_named_weights_are_sampled_like_unnamed_ones(service, training, sampler):
    path = training.save_weights_for_sampler("named").result().path
    named = service.create_sampling_client(model_path=path)
    assert tokens(draw(named, seed=3)) == tokens(draw(sampler, seed=3))
    if hasattr(named, "get_base_model"):
        assert named.get_base_model() == BASE_MODEL


def test_training_on_does_not_change_a_sampler(training, sampler, batch):
    before = tokens(draw(sampler, seed=3, stop=[]))
    for _ in range(5):
        training.forward_backward(batch, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-1)).result()
    assert tokens(draw(sampler, seed=3, stop=[])) == before
    after = training.save_weights_and_get_sampling_client()
    assert tokens(draw(after, seed=3, stop=[])) != before


def test_the_base_model_is_sampled(service):
    base = service.create_sampling_client(base_model=BASE_MODEL)
    assert len(draw(base, 2, stop=[])) == 2


def test_many_samples_at_once(sampler):
    params = types.SamplingParams(max_tokens=8, stop=[])
    futures = [sampler.sample(PROMPT, 1, params) for _ in range(100)]
    assert all(len(future.result().sequences) == 1 for future in futures)
