"""A training loop as a user of the official SDK writes one. It goes on for as long as lines come on stdin, a step for each."""

import sys

import tinker
from tinker import types

HOSTILE = "<img src=x onerror=alert(1)>\u202e"

service = tinker.ServiceClient(user_metadata={"note": HOSTILE * 20})
training = service.create_lora_training_client(
    base_model="tinkrs/nano", rank=8, seed=1, user_metadata={"name": sys.argv[1], "about": HOSTILE}
)
# Learn that 80 81 82 follows 71 72: the loss is of those three alone.
datum = types.Datum(
    model_input=types.ModelInput.from_ints([71, 72, 80, 81]),
    loss_fn_inputs={"target_tokens": [72, 80, 81, 82], "weights": [0.0, 1.0, 1.0, 0.5]},
)
print("ready", training.get_info().model_id, flush=True)
for step, line in enumerate(sys.stdin, start=1):
    if line.strip() == "save":
        training.save_state("kept").result()
        training.save_weights_for_sampler("kept").result()
        print("saved", flush=True)
        continue
    backward = training.forward_backward([datum], "cross_entropy")
    update = training.optim_step(types.AdamParams(learning_rate=4e-3))
    backward.result()
    update.result()
    print("step", step, flush=True)
