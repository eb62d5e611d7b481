"""moto's S3 server, a process of its own on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

from tests.conftest import SERVERS

#: One request at a time: moto looks for an object and writes it in two steps, between which S3 lets nobody else write.
SERVE = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

serve, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

def in_turn(environ, start_response):
    with one:
        return serve(environ, start_response)

make_server(sys.argv[1], int(sys.argv[2]), in_turn, threaded=True, fd=int(sys.argv[3])).serve_forever()
"""


@contextmanager
def serving(host="127.0.0.1"):
    """The address of a server, until the end of the block. It listens on an address of this machine."""
    with socket.create_server((host, 0), backlog=128) as listening:  # its port is nobody else's from now on
        port, fd = listening.getsockname()[1], listening.fileno()
        command = [sys.executable, "-c", SERVE, host, str(port), str(fd)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[fd])
    SERVERS.add(server.pid)
    url = f"http://{host}:{port}"
    try:
        urllib.request.urlopen(f"{url}/moto-api/").close()  # waits until it answers
        yield url
    finally:
        server.terminate()
        server.wait()
        SERVERS.discard(server.pid)


def options_of(endpoint):
    """How delta-rs reaches it, as options or in the environment."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def bucket(endpoint, name):
    """A new one; returns its URL."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    return f"s3://{name}"
