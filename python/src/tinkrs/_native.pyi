from collections.abc import Sequence
from typing import final

# Stop reason, id, tokens as int32 and log-probabilities as float32.
_Sequence = tuple[str, str, bytes, bytes | None]
# The sequences, log-probabilities of the prompt as float32, and how many tokens came from the cache.
_Output = tuple[tuple[_Sequence, ...], bytes | None, int]
# Status, request id, whether the caller is to blame, and the message.
_Failure = tuple[int | None, str | None, bool, str]

@final
class Sampler:
    def submit(
        self,
        ticket: int,
        tokens: Sequence[int],
        num_samples: int,
        max_tokens: int | None,
        seed: int | None,
        stop: str | Sequence[int] | Sequence[str] | None,
        temperature: float,
        top_k: int,
        top_p: float,
        prompt_logprobs: bool,
    ) -> None: ...
    def take(self) -> list[tuple[int, _Output, None] | tuple[int, None, _Failure]] | None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...

def open(handle: str, api_key: str | None) -> Sampler: ...
