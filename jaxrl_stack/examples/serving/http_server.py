"""HTTP server for a trained policy, with the standard library only.

``python -m jaxrl_stack.examples.serving.http_server CHECKPOINT --port 8000``
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jaxrl_stack.examples.serving.json_policy import JsonPolicy
from jaxrl_stack.policy import Policy

MAX_BYTES = 16_000_000
"""Size of the largest request that the server reads."""


def make_server(policy: Policy, host: str = "127.0.0.1", port: int = 8000) -> ThreadingHTTPServer:
    """Creates an HTTP server that answers POST requests with actions; ``serve_forever()`` starts it, ``shutdown()``
    ends it.

    A request and its answer are JSON, see `JsonPolicy.act`. A request that is wrong gets status 400 and
    ``{"error": text}``. Each connection has a thread. The server neither encrypts nor checks who asks: if other
    machines send requests, put it behind a proxy that does both.

    Args:
        policy: The policy that acts.
        host: Address on which the server listens; ``"0.0.0.0"`` for all addresses of this machine.
        port: Its port; 0 for a free one, which is then ``server.server_address[1]``.
    """
    json_policy = JsonPolicy(policy)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open from request to request
        disable_nagle_algorithm = True  # small answers are sent immediately

        def do_POST(self) -> None:
            try:
                length = int(self.headers.get("Content-Length", 0))
                if not 0 <= length <= MAX_BYTES:
                    self.close_connection = True  # the body stays unread
                    raise ValueError(
                        f"The request has {length} bytes, but the server reads at most {MAX_BYTES}. Send fewer bytes."
                    )
                answer = json_policy.act(json.loads(self.rfile.read(length)))
            except ValueError as error:  # of JSON, too
                self._send(400, {"error": str(error)})
            else:
                self._send(200, answer)

        def _send(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Does nothing, so that requests are not logged."""

    return ThreadingHTTPServer((host, port), Handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the policy of a checkpoint until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve the policy of a checkpoint over HTTP.")
    parser.add_argument("checkpoint", help="folder of an algorithm's or a policy's checkpoint")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    with make_server(Policy.from_checkpoint(options.checkpoint), options.host, options.port) as server:
        print(f"http://{options.host}:{server.server_address[1]}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
