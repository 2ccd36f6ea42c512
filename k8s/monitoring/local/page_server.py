# SPDX-License-Identifier: Apache-2.0
"""The page, what it draws, and Prometheus' API behind one origin on loopback.

Knows nothing of drawing: page/ is plain HTML and JavaScript.
"""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from k8s.monitoring.local.panels import read_panels

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css"}
HOST = "127.0.0.1"
STOP_CHECK_S = 0.05


class Handler(BaseHTTPRequestHandler):
    prometheus_url: str
    panels: bytes

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/v1/"):
            self._pass_on()
        elif path == "/panels":
            self._answer(self.panels, "application/json")
        elif (file := PAGE / (path.strip("/") or "index.html")) in PAGE.iterdir():
            self._answer(file.read_bytes(), TYPES[file.suffix])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _pass_on(self) -> None:
        try:
            response = urllib.request.urlopen(self.prometheus_url + self.path, timeout=10)  # noqa: S310
        except urllib.error.HTTPError as error:
            response = error
        except urllib.error.URLError as error:
            return self.send_error(HTTPStatus.BAD_GATEWAY, str(error.reason))
        with response:
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            shutil.copyfileobj(response, self.wfile)
        return None

    def _answer(self, body: bytes, content_type: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Prometheus' own log is enough."""


@contextmanager
def serving_page(prometheus_url: str, port: int = 0) -> Iterator[str]:
    """The page's address, for as long as it is wanted. 0 takes a free port."""
    panels = json.dumps([asdict(panel) | {"needs_npu_exporter": panel.needs_npu_exporter} for panel in read_panels()])
    kind = type("BoundHandler", (Handler,), {"prometheus_url": prometheus_url, "panels": panels.encode()})
    with ThreadingHTTPServer((HOST, port), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(STOP_CHECK_S,), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
