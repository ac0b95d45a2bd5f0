"""A local Tinker server for Python programs and their tests.

    import tinker, tinkrs

    with tinkrs.serve() as server:
        client = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        training = client.create_lora_training_client("tinkrs/nano", rank=8)

``tinkrs.log_metrics(training, step, {"reward": 0.5})`` shows what a program has computed in the studio's charts.

The ``tinkrs`` command is part of this package. With pytest installed, the fixtures ``tinker_server`` and
``tinker_service_client`` and the marker ``tinker_faults`` are there by themselves: see ``tinkrs.pytest_plugin``.
"""

from ._faults import FaultRules
from ._metrics import log_metrics
from ._program import find_program
from ._server import Server, ServerError, serve

__all__ = ["FaultRules", "Server", "ServerError", "find_program", "log_metrics", "serve"]
