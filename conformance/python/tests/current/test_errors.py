"""What the official SDK says about mistakes."""

import pytest
import tinker
from conftest import BASE_MODEL, supervised
from tinker import types


def test_a_token_outside_the_vocabulary_is_named_and_the_client_goes_on(training, batch):
    bad = batch[:1] + [supervised([1, 99_999, 2], 1)]
    with pytest.raises(tinker.RequestFailedError, match="datum 1.*99999") as caught:
        training.forward_backward(bad, "cross_entropy").result()
    assert caught.value.category == types.RequestErrorCategory.User
    training.forward_backward(batch, "cross_entropy").result()


def test_wrong_lengths_are_named_and_the_client_goes_on(training, batch):
    bad = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0]},
    )
    with pytest.raises(tinker.RequestFailedError, match="datum 3.*weights"):
        training.forward_backward(batch + [bad], "cross_entropy").result()
    training.optim_step(types.AdamParams()).result()


def test_an_unknown_loss_option_is_named(training, batch):
    with pytest.raises(tinker.RequestFailedError, match="epsilon"):
        training.forward_backward(batch, "ppo", {"epsilon": 0.2}).result()


def test_a_bad_optimizer_setting_is_named(training):
    with pytest.raises(tinker.RequestFailedError, match="beta1"):
        training.optim_step(types.AdamParams(learning_rate=1e-4, beta1=1.0)).result()


def test_an_unknown_base_model_is_refused_with_those_there_are(service):
    with pytest.raises(tinker.BadRequestError, match=BASE_MODEL):
        service.create_lora_training_client(base_model="no/such-model", rank=8)
    with pytest.raises(tinker.BadRequestError, match=BASE_MODEL):
        service.create_sampling_client(base_model="no/such-model")


def test_a_rank_of_zero_is_refused(service):
    with pytest.raises(tinker.BadRequestError, match="rank"):
        service.create_lora_training_client(base_model=BASE_MODEL, rank=0)


@pytest.mark.skipif(
    not hasattr(types, "DimuonOptimizerConfig"), reason="this SDK has no choice of optimizers"
)
def test_dimuon_is_refused_by_name(service):
    with pytest.raises(tinker.BadRequestError, match="dimuon"):
        service.create_lora_training_client(
            base_model=BASE_MODEL, rank=8, optimizer=types.DimuonOptimizerConfig()
        )


def test_a_checkpoint_that_is_not_there_is_named(service):
    path = "tinker://none:train:0/weights/nothing"
    with pytest.raises(tinker.NotFoundError, match="nothing"):
        service.create_training_client_from_state(path)


def test_weights_of_the_wrong_kind_are_explained(service, training):
    path = training.save_state("state").result().path
    with pytest.raises(tinker.BadRequestError, match="save_weights_for_sampler"):
        service.create_sampling_client(model_path=path)


def test_a_prompt_that_is_too_long_is_refused(service):
    sampler = service.create_sampling_client(base_model=BASE_MODEL)
    params = types.SamplingParams(max_tokens=100_000)
    with pytest.raises(tinker.RequestFailedError, match="100000"):
        sampler.sample(types.ModelInput.from_ints([1]), 1, params).result()


def test_a_name_that_leads_elsewhere_is_refused(training):
    with pytest.raises(tinker.RequestFailedError, match="path"):
        training.save_state("../../elsewhere").result()
