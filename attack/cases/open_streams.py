"""Somebody has a stolen cookie, and somebody else a link to a run, each with a stream of events open. The owner logs out everywhere."""

import http.client
import time
import urllib.parse

TITLE = "streams of events that stay open after the owner has logged out everywhere"


def login(server):
    """Logs a browser in. Returns its cookie."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    connection.request("POST", "/login", "key=tml-one", form)
    return cookie(connection)


def follow(server, url):
    """Follows a link to a run. Returns its cookie."""
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    path = urllib.parse.urlsplit(url)
    connection.request("GET", f"{path.path}?{path.query}")
    return cookie(connection)


def cookie(connection):
    return connection.getresponse().getheader("set-cookie", "").split(";")[0]


def listen(server, run, pass_):
    connection = server.connect(timeout=5)
    connection.sendall(f"GET /api/v1/studio/events?run={run} HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: {pass_}\r\n\r\n".encode())
    heard = connection.recv(4096)
    if b" 200 " not in heard:
        raise ConnectionError(heard)
    return connection


def rest(connection):
    """What still comes, until it ends or nothing more does."""
    heard = b""
    try:
        while part := connection.recv(65536):
            heard += part
    except TimeoutError:
        pass
    return heard


def attack(target):
    server = target.serve()
    api = server.api("tml-one")
    run = api.model(api.session())
    mine = login(server)
    url = api.post(f"training_runs/{run}/share", {"hours": 24})["url"]
    streams = [listen(server, run, pass_) for pass_ in (login(server), follow(server, url))]
    own = {"x-api-key": "", "cookie": mine, "x-tinkrs-studio": "1", "sec-fetch-site": "same-origin"}
    status, _ = api.send("POST", "/logout?everywhere=true", headers=own)
    time.sleep(1)
    api.post(f"training_runs/{run}/metrics", {"step": 1, "metrics": {"secret": 42}})
    told = sum(b'"secret"' in rest(stream) for stream in streams)
    return f"logout {status}; {told} of {len(streams)} were told of what came after", status == 303 and told == 0
