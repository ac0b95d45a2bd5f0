"""The official SDK sends `null` for NaN. It must not become a default."""

from attack.harness import Refused

TITLE = "`learning_rate: null` (what the SDK sends for NaN)"


def attack(target):
    api = target.serve().api()
    model = api.model(api.session())
    api.result(api.forward_backward(model, 1))
    try:
        result = api.result(api.optim_step(model, 2, learning_rate=None))
    except Refused as refused:
        result = {"error": refused.body.decode()}
    error = result.get("error")
    return (f"refused: {error[:80]}", "learning_rate" in error) if error else ("trained with the default", False)
