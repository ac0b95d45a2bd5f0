"""The fixtures, in a pytest of their own."""

import pytest

pytest_plugins = ["pytester"]

LOOP = """
import tinker

def train(client, steps=3):
    training = client.create_lora_training_client("tinkrs/nano", rank=4, seed=1)
    tokens = [10, 20, 30, 40]
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[3]),
            "weights": tinker.TensorData(data=[1.0, 1.0, 1.0], dtype="float32", shape=[3]),
        },
    )
    losses = []
    for _ in range(steps):
        result = training.forward_backward([datum], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
        losses.append(result.result().metrics["loss:sum"])
    return losses
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(loop=LOOP)
    return pytester


def test_a_loop_learns_on_the_fixtures_and_faults_change_none_of_its_numbers(project):
    project.makepyfile(
        """
        import pytest
        from loop import train

        losses = []

        def test_without_faults(tinker_service_client):
            losses.append(train(tinker_service_client))
            assert losses[0][-1] < losses[0][0]

        @pytest.mark.tinker_faults(rate_limit=0.2, cut=0.2, seed=3)
        def test_with_faults(tinker_service_client, tinker_server):
            since = tinker_server.log_size()
            losses.append(train(tinker_service_client))
            assert losses[1] == losses[0]
            assert any(" 429 " in line for line in tinker_server.transcript(since))

        def test_faults_end_with_their_test(tinker_service_client, tinker_server):
            since = tinker_server.log_size()
            train(tinker_service_client)
            assert not any(" 429 " in line for line in tinker_server.transcript(since))
        """
    )
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


def test_a_test_that_fails_shows_what_the_server_answered_and_others_do_not(project):
    project.makepyfile(
        """
        def test_fails(tinker_service_client):
            tinker_service_client.get_server_capabilities()
            assert False

        def test_is_none_of_its_business():
            assert False
        """
    )
    result = project.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*Tinker server*", "*GET*/api/v1/get_server_capabilities*200*"])
    assert str(result.stdout).count("- Tinker server -") == 1


def test_a_server_that_a_test_killed_is_there_for_the_next(project):
    project.makepyfile(
        """
        def test_kills(tinker_server):
            tinker_server.kill()

        def test_goes_on(tinker_service_client):
            assert tinker_service_client.get_server_capabilities().supported_models
        """
    )
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_faults_end_with_a_test_that_kills_the_server_or_sets_its_own(project):
    project.makepyfile(
        """
        import pytest
        from loop import train

        @pytest.mark.tinker_faults(rate_limit=1)
        def test_kills(tinker_server):
            tinker_server.kill()

        def test_sets_its_own(tinker_service_client, tinker_server):
            train(tinker_service_client)
            tinker_server.set_faults({"rules": [{"endpoint": "asample", "fault": 500}]})

        def test_meets_none(tinker_service_client, tinker_server):
            assert tinker_server.pid is not None
            sampler = tinker_service_client.create_sampling_client(base_model="tinkrs/nano")
            since = tinker_server.log_size()
            import tinker
            sampler.sample(tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)).result()
            assert not any(" 500 " in line for line in tinker_server.transcript(since))
        """
    )
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


def test_a_proxy_of_the_environment_is_not_asked_about_the_server(project, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")
    project.makepyfile(
        """
        import os

        def test_reaches_it(tinker_service_client):
            assert tinker_service_client.get_server_capabilities().supported_models
            assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "example.org,127.0.0.1"
        """
    )
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("rate_limits=0.2", "unknown fault 'rate_limits'"),
        ("cut=2", "cut is 2: expected a probability from 0 to 1"),
        ("0.2", "takes names"),
        ("cut=1, endpoints='asample'", "endpoints is 'asample': expected a list"),
        ("rules={'fault': 'cut'}", "rules is {'fault': 'cut'}: expected a list"),
    ],
)
def test_a_marker_that_cannot_be_read_is_an_error_that_names_it(pytester, arguments, expected):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.tinker_faults({arguments})
        def test_never_runs(tinker_server):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{expected}*"])


def test_workers_of_xdist_have_servers_of_their_own(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(4))
        def test_alone(tinker_server, n, tmp_path_factory):
            shared = tmp_path_factory.getbasetemp().parent
            (shared / tinker_server.url.rsplit(":")[-1]).touch()
        """
    )
    project.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider").assert_outcomes(passed=4)
