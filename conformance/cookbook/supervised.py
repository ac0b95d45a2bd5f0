"""The cookbook's supervised loop: the loss falls, and a crashed run goes on from its checkpoint."""

import asyncio
import shutil
from pathlib import Path

import chz
from local import MODEL, RENDERER, Crash, CrashingDataset, metrics, series, write_conversations

from tinker_cookbook import checkpoint_utils
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig, SupervisedDatasetBuilder

SAVE_EVERY = 4
CRASH_AT = 7


@chz.chz
class CrashingBuilder(SupervisedDatasetBuilder):
    inner: FromConversationFileBuilder
    mark: str

    def __call__(self):
        dataset, test = self.inner()
        return CrashingDataset(dataset, CRASH_AT, Path(self.mark)), test


def run(folder):
    """Trains, crashes, resumes; returns figures."""
    data = write_conversations(folder / "conversations.jsonl")
    log_path = folder / "supervised"
    config = train.Config(
        log_path=str(log_path),
        model_name=MODEL,
        recipe_name="tinkrs_conformance",
        renderer_name=RENDERER,
        dataset_builder=CrashingBuilder(
            inner=FromConversationFileBuilder(
                file_path=str(data),
                test_size=8,
                common_config=ChatDatasetBuilderCommonConfig(
                    model_name_for_tokenizer=MODEL, renderer_name=RENDERER, max_length=128, batch_size=4
                ),
            ),
            mark=str(folder / "supervised-crashed"),
        ),
        learning_rate=5e-3,
        num_epochs=2,
        lora_rank=8,
        save_every=SAVE_EVERY,
        rolling_save_every=3,
        eval_every=5,
        session_name="supervised loop of the cookbook",
    )
    try:
        asyncio.run(train.main(config))
        raise AssertionError("the loop was meant to crash")
    except Crash:
        pass
    before = metrics(log_path)
    saved = checkpoint_utils.get_last_checkpoint(str(log_path))
    # The run goes on twice, from the same checkpoint and with the same data. (What the loop did between the checkpoint
    # and the crash cannot be compared: it saves when later batches are already on their way.)
    twin = folder / "supervised-twin"
    shutil.copytree(log_path, twin)
    for resumed in [log_path, twin]:
        asyncio.run(train.main(chz.replace(config, log_path=str(resumed))))
    after, again = (metrics(path)[len(before) :] for path in [log_path, twin])
    assert series(after, "step")[0] == saved.batch, f"resumed at step {after[0]['step']}, not at {saved.batch}"
    optimizer_steps = series(after, "optimizer_step")
    assert optimizer_steps[0] > saved.batch, "the state of the optimizer was not restored"
    resumed_losses = series(after, "train_mean_nll")
    assert resumed_losses == series(again, "train_mean_nll"), "the same checkpoint went on in two ways"

    losses = series(before, "train_mean_nll") + resumed_losses
    assert resumed_losses[0] < 0.7 * losses[0], f"what was learned before the crash is gone: {losses}"
    assert losses[-1] < 0.1 * losses[0], f"the loss did not fall: {losses}"
    held_out = series(before + after, "test/nll")
    assert held_out[-1] < held_out[0], f"the loss on what was held out did not fall: {held_out}"
    return {
        "steps": len(losses),
        "first loss": losses[0],
        "last loss": losses[-1],
        "held out": [held_out[0], held_out[-1]],
        "steps after the crash, twice, equal to the last bit": len(resumed_losses),
    }
