"""A small server on this machine that speaks what `huggingface_hub` asks of the Hub; a stand-in for tests."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_test"
LARGE = 2048
"""Bytes from which a file is stored as a large one (LFS)."""


@dataclass
class Repository:
    """Commits with all their files, and the branches that point to them."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        digest = hashlib.sha1(f"{len(self.commits)}{branch}{sorted(files)}".encode()).hexdigest()
        self.commits[digest] = dict(files)
        self.branches[branch] = digest
        return digest

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class HubServer:
    """Serves until `close`.

    Attributes:
        repositories: by kind and name, such as `models/org/name`.
        requests: method and path of all that was asked.
        cut: `""`, or how downloads of weights go wrong: `short` says the shorter length, `drop` closes the line.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.large: dict[str, bytes] = {}
        self.cut = ""
        hub = self

        class Bound(Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def constants(self, cache: Path) -> dict[str, object]:
        """What `huggingface_hub.constants` must say for this process to ask this server, with an empty cache."""
        return {
            "ENDPOINT": self.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache),
            "HF_TOKEN_PATH": str(cache / "token"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
        }

    def add(self, name: str, folder: Path | dict[str, bytes], *, kind: str = "models", branch: str = "main") -> str:
        files = folder if isinstance(folder, dict) else files_of(folder)
        return self.repositories.setdefault(f"{kind}/{name}", Repository()).commit(files, branch)

    def model(self, name: str) -> Repository:
        return self.repositories[f"models/{name}"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, url = self.server_hub, urlsplit(self.path)
        path = unquote(url.path)
        hub.requests.append(f"{self.command} {path}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.knows = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create()
        if found := re.fullmatch(r"/large/(\w+)", path):
            hub.large[found[1]] = self.body
            return self.send(200, b"")
        if found := re.fullmatch(r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            return self.batch()
        if found := re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+|refs/\w+/\d+)/(.+)", path):
            kind = found[1] or "models/"
            return self.with_commit(kind + found[2], found[3], lambda commit, files: self.file(commit, files, found[4]))
        found = re.fullmatch(r"/api/((?:models|datasets)/[\w.-]+/[\w.-]+)(?:/([\w-]+)/([^/]+)(?:/(.*))?)?", path)
        if not found:
            return self.send(404, b"")
        name, verb, revision, rest = found[1], found[2] or "revision", found[3] or "main", found[4] or ""
        if verb == "branch":
            return self.branch(name, revision)
        if verb == "preupload":
            return self.with_commit(name, revision, lambda _, files: self.preupload(files))
        if verb == "commit":
            return self.with_commit(name, revision, lambda _, files: self.commit(name, revision, files))
        if verb == "tree":
            recursive = parse_qs(url.query).get("recursive", [""])[0].lower() in ("1", "true")
            return self.with_commit(name, revision, lambda _, files: self.tree(files, rest, recursive))
        if verb == "paths-info":
            asked = parse_qs(self.body.decode()).get("paths", [])
            return self.with_commit(name, revision, lambda _, files: self.paths(files, asked))
        return self.with_commit(name, revision, lambda commit, files: self.info(name, commit, files))

    def with_commit(self, name, revision, respond):
        repository = self.server_hub.repositories.get(name)
        if repository is None or (repository.private and not self.knows):
            return self.send(404 if self.knows else 401, b"", {"X-Error-Code": "RepoNotFound"})
        commit = repository.resolve(revision)
        if commit is None:
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if repository.gated and not self.knows and "/resolve/" in self.path:
            return self.send(403, b"", {"X-Error-Code": "GatedRepo"})
        return respond(commit, repository.commits[commit])

    def info(self, name, commit, files):
        repository = self.server_hub.repositories[name]
        said = {"_id": "1", "id": name.partition("/")[2], "sha": commit, "private": repository.private, "tags": []}
        siblings = [{"rfilename": path} for path in sorted(files)]
        self.json({**said, "gated": False, "disabled": False, "downloads": 0, "likes": 0, "siblings": siblings})

    def described(self, files, path):
        content = files[path]
        said = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        if len(content) >= LARGE:
            said["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return said

    def tree(self, files, under, recursive):
        prefix = under.rstrip("/") + "/" if under else ""
        below = [path for path in sorted(files) if path.startswith(prefix)]
        if prefix and not below:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        folders = sorted({prefix + path[len(prefix) :].split("/")[0] for path in below if "/" in path[len(prefix) :]})
        direct = [path for path in below if recursive or "/" not in path[len(prefix) :]]
        listed = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in folders]
        return self.json(listed + [self.described(files, path) for path in direct])

    def paths(self, files, asked):
        found = [self.described(files, path) for path in asked if path in files]
        folders = [path for path in asked if any(file.startswith(path + "/") for file in files)]
        self.json(found + [{"type": "directory", "path": path, "oid": "0" * 40} for path in folders])

    def file(self, commit, files, path):
        if path not in files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content = files[path]
        digest = (hashlib.sha256 if len(content) >= LARGE else hashlib.sha1)(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if len(content) >= LARGE:
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{digest}"'}
        cut = self.server_hub.cut if path.endswith(".safetensors") and self.command == "GET" else ""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if cut == "short":
            return self.send(200, content[: len(content) // 2], headers)
        if asked:
            start, end = int(asked[1]), int(asked[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            return self.send(206, b"" if cut else content[start : end + 1], headers, length=end + 1 - start)
        return self.send(200, content[: len(content) // 2] if cut else content, headers, length=len(content))

    def create(self):
        if not self.knows:
            return self.send(401, b"{}")
        asked = json.loads(self.body)
        name = f"models/{asked['organization']}/{asked['name']}"
        url = {"url": f"{self.server_hub.address}/{name.partition('/')[2]}"}
        if name in self.server_hub.repositories:
            return self.json(url, 409)
        made = self.server_hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        made.commit({".gitattributes": b"*.safetensors lfs"})
        return self.json(url)

    def branch(self, name, branch):
        repository = self.server_hub.repositories[name]
        if branch in repository.branches:
            return self.json({}, 409)
        repository.branches[branch] = repository.branches["main"]
        return self.json({})

    def preupload(self, files):
        asked = json.loads(self.body)["files"]
        modes = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["size"] >= LARGE else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for one in asked
        ]
        self.json({"files": modes})

    def batch(self):
        objects = json.loads(self.body)["objects"]
        href = f"{self.server_hub.address}/large/"
        made = [{**one, "actions": {"upload": {"href": href + one["oid"], "header": {}}}} for one in objects]
        self.json({"transfer": "basic", "objects": made})

    def commit(self, name, branch, files):
        if not self.knows:
            return self.send(403, b"{}")
        files = dict(files)
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                self.server_hub.messages.append(value["summary"])
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.server_hub.large[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        made = self.server_hub.repositories[name].commit(files, branch)
        return self.json({"commitUrl": f"{self.server_hub.address}/{name}/commit/{made}", "commitOid": made})

    def json(self, value, status=200):
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status, content, headers=None, *, length=None):
        """Answers; a `length` beyond the content is a line that breaks in the middle."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        announced = len(content) if length is None else length
        self.send_header("Content-Length", str(announced))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.close_connection = announced > len(content)
