"""A loopback stand-in of the Hugging Face hub: the part of its protocol that reading a data set or a model takes.

`datasets` and `huggingface_hub` find all they ask for here. It serves one folder as a repository at one commit, with range
requests, and remembers what it was asked.
"""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "owner/corpus"


class HubStandIn:
    """Serves `folder`, as data set or model `owner/corpus`, while the `with` block runs.

    Attributes:
        refusal: status and X-Error-Code that answer everything instead.
        requests: `METHOD path` of everything that was asked.
        bytes_sent: of file content.
        tokens_seen: every Authorization header that came.
        failures_left: so many reads of file content are answered with 503 first.
    """

    def __init__(
        self,
        folder: Path,
        failures: int = 0,
        kind: Literal["datasets", "models"] = "datasets",
        refusal: tuple[int, str] | None = None,
    ) -> None:
        self.folder = folder
        self.api = f"/api/{kind}/{REPOSITORY}"
        self.files = f"/datasets/{REPOSITORY}/resolve/" if kind == "datasets" else f"/{REPOSITORY}/resolve/"
        self.refusal = refusal
        self.failures_left = failures
        self.requests: list[str] = []
        self.bytes_sent = 0
        self.tokens_seen: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubStandIn:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        """Silence: the tests read `requests`."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if authorization := self.headers.get("Authorization"):
            self.hub.tokens_seen.add(authorization)
        api, files = self.hub.api, self.hub.files
        if self.hub.refusal:
            self._missing(*self.hub.refusal)
        elif path in (api, *(f"{api}/revision/{revision}" for revision in ("main", COMMIT))):
            self._json(self._repository())
        elif path.startswith(f"{api}/tree/"):
            self._json(self._tree(path.removeprefix(f"{api}/tree/").partition("/")[2]))
        elif path.startswith(f"{api}/paths-info/"):
            wanted = parse_qs(body.decode())["paths"] if b"=" in body else json.loads(body)["paths"]
            self._json([self._entry(self.hub.folder / name) for name in wanted if (self.hub.folder / name).exists()])
        elif path.startswith(files):
            revision, _, name = path.removeprefix(files).partition("/")
            if revision in ("main", COMMIT):
                self._file(self.hub.folder / name)
            else:
                self._missing(404, "RevisionNotFound")
        else:
            self._missing(404, "RepoNotFound")

    def _repository(self) -> dict[str, object]:
        names = [path.relative_to(self.hub.folder).as_posix() for path in sorted(self.hub.folder.rglob("*")) if path.is_file()]
        return {
            "id": REPOSITORY,
            "sha": COMMIT,
            "private": False,
            "gated": False,
            "siblings": [{"rfilename": name} for name in names],
        }

    def _tree(self, below: str) -> list[dict[str, object]]:
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
        root = self.hub.folder / below
        return [self._entry(path) for path in sorted(root.rglob("*") if recursive else root.glob("*"))]

    def _entry(self, path: Path) -> dict[str, object]:
        name = path.relative_to(self.hub.folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
        return {"type": "file", "path": name, "oid": _etag(path), "size": path.stat().st_size}

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._missing(404, "EntryNotFound")
            return
        data, status = path.read_bytes(), 200
        total = len(data)
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(int(last) if last else total - 1, total - 1)
            if self.command == "GET" and self.hub.failures_left:
                self.hub.failures_left -= 1
                self._send(503, b"", {})
                return
            data, status = data[int(first) : end + 1], 206
            headers["Content-Range"] = f"bytes {first}-{end}/{total}"
        if self.command == "GET":
            self.hub.bytes_sent += len(data)
        self._send(status, data, headers)

    def _missing(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    def _json(self, answer: object) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
