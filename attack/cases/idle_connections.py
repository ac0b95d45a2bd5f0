"""More connections than the server may have, each of which has had its response and keeps the connection."""

import http.client
import resource

TITLE = "1,500 idle connections (with room for 1,024)"
CONNECTIONS = 1500


def attack(target):
    # The limit that systems usually start programs with; the harness itself may need more.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    options = ["--connections", "1024"] if target.has_option("--connections") else []
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        server = target.serve(*options)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept, failures = [], 0
    for _ in range(CONNECTIONS):
        if failures == 3:  # nobody gets in any more
            break
        connection = http.client.HTTPConnection(*server.address, timeout=2)
        try:
            connection.request("GET", "/api/v1/healthz")
            connection.getresponse().read()
            failures = 0
        except OSError:
            failures += 1
        kept.append(connection)
    answered = 0
    for _ in range(10):
        try:
            status, _ = server.api().send("GET", "/api/v1/get_server_capabilities", timeout=2)
            answered += status == 200
        except OSError:
            pass
    for connection in kept:
        connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return f"{answered} of 10 others got a response", answered == 10
