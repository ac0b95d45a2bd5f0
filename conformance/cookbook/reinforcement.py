"""The cookbook's reinforcement loop, in its three forms: the reward rises, and a crashed run goes on."""

import asyncio
import re
from functools import partial
from pathlib import Path

import chz
from local import MODEL, RENDERER, Crash, CrashingDataset, mean, metrics, series

from tinker_cookbook import checkpoint_utils, renderers
from tinker_cookbook.rl import train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

WANTED = {"owl", "bear", "fox"}
CRASH_AT = 6


class ForestEnv(ProblemEnv):
    """Asks for three animals, and rewards those of the forest."""

    def get_question(self):
        return "Name three animals."

    def check_answer(self, sample_str):
        words = re.findall("[a-z]+", sample_str.lower())
        return len(WANTED.intersection(words)) / len(WANTED) if len(words) <= 4 else 0.0

    def check_format(self, sample_str):
        return sample_str.endswith(".")

    def get_reference_answer(self):
        return "Owl, bear and fox."


class ForestDataset(RLDataset):
    def __init__(self, renderer, batches, groups, group_size):
        self.renderer, self.batches, self.groups, self.group_size = renderer, batches, groups, group_size

    def get_batch(self, index):
        thunk = partial(ForestEnv, self.renderer)
        return [ProblemGroupBuilder(env_thunk=thunk, num_envs=self.group_size) for _ in range(self.groups)]

    def __len__(self):
        return self.batches


@chz.chz
class ForestBuilder(RLDatasetBuilder):
    batches: int
    groups: int = 4
    group_size: int = 8
    renderer_name: str = RENDERER
    crash_mark: str | None = None

    async def __call__(self):
        renderer = renderers.get_renderer(self.renderer_name, get_tokenizer(MODEL))
        dataset = ForestDataset(renderer, self.batches, self.groups, self.group_size)
        if self.crash_mark is not None:
            dataset = CrashingDataset(dataset, CRASH_AT, Path(self.crash_mark))
        return dataset, ForestDataset(renderer, 1, 2, 4)


def config(log_path, builder, **settings):
    defaults = {
        "learning_rate": 3e-3,
        "model_name": MODEL,
        "recipe_name": "tinkrs_conformance",
        "renderer_name": RENDERER,
        "max_tokens": 16,
        "lora_rank": 8,
        "eval_every": 5,
        "save_every": 4,
        "remove_constant_reward_groups": True,
    }
    return train.Config(log_path=str(log_path), dataset_builder=builder, **{**defaults, **settings})


def synchronous(folder):
    """Samples, trains, samples; crashes and resumes on the way."""
    log_path = folder / "reinforcement"
    settings = config(
        log_path,
        ForestBuilder(batches=16, crash_mark=str(folder / "reinforcement-crashed")),
        compute_post_kl=True,
        kl_penalty_coef=0.001,
        kl_reference_config=train.KLReferenceConfig(base_model=MODEL),
    )
    try:
        asyncio.run(train.main(settings))
        raise AssertionError("the loop was meant to crash")
    except Crash:
        pass
    last = checkpoint_utils.get_last_checkpoint(str(log_path))
    before = len(metrics(log_path))
    asyncio.run(train.main(settings))
    rows = metrics(log_path)
    resumed_at = rows[before]["progress/batch"]
    assert resumed_at == last.batch, f"resumed at batch {resumed_at}, not at {last.batch}"

    rewards = series(rows, "env/all/reward/total")
    start, end = mean(rewards[:2]), mean(rewards[-2:])
    assert end > start + 0.3, f"the reward did not rise: {rewards}"
    # What the sampler said about its own tokens is what the trainer says: both run the same weights.
    divergence = max(abs(value) for value in series(rows, "optim/kl_sample_train_v1"))
    assert divergence < 1e-4, f"sampler and trainer disagree by {divergence}"
    return {"batches": len(rewards), "reward": [start, end], "greatest divergence of sampler and trainer": divergence}


def other_forms(folder):
    """The forms that overlap sampling and training, other losses, and a text that ends an answer."""
    forms = {
        "minibatches": config(
            folder / "minibatches",
            ForestBuilder(batches=3),
            stream_minibatch_config=train.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2),
            loss_fn="ppo",
            num_substeps=2,
        ),
        "off policy": config(
            folder / "off-policy",
            ForestBuilder(batches=4),
            async_config=train.AsyncConfig(max_steps_off_policy=2, groups_per_batch=4),
            loss_fn="cispo",
            remove_constant_reward_groups=False,
        ),
        "stop text": config(
            folder / "stop-text",
            ForestBuilder(batches=2, renderer_name="role_colon"),
            renderer_name="role_colon",
            remove_constant_reward_groups=False,
        ),
    }
    figures = {}
    for name, settings in forms.items():
        asyncio.run(train.main(settings))
        rewards = series(metrics(settings.log_path), "env/all/reward/total")
        assert rewards, f"{name}: nothing was trained"
        assert checkpoint_utils.get_last_checkpoint(settings.log_path), f"{name}: nothing was saved"
        figures[name] = {"batches": len(rewards), "rewards": rewards}
    return figures
