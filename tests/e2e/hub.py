#!/usr/bin/env python3
"""hub.py FOLDER PORTS LOG: plays the hub on two ports of loopback, which it writes to PORTS. Every repository OWNER/m holds the files of FOLDER and
`weights.safetensors`, 6 MB; the owner's name says how the server misbehaves (MODES). Requests go to LOG: port, path, Range, Authorization."""
import hashlib
import http.server
import json
import os
import pathlib
import socket
import sys
import threading
import time

COMMIT = "c0ffee" + "0" * 34
BIG = hashlib.shake_256(b"weights").digest(6_000_000)
folder, ports_path, log_path = (pathlib.Path(a) for a in sys.argv[1:])
FILES = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}
FILES |= {"weights.safetensors": BIG, "pytorch_model.bin": b"skip", "onnx/model.onnx": b"skip", "sub/deep/a b%.json": b"{}", "empty.json": b"", ".gitattributes": b"*"}
log_lock = threading.Lock()
n_seen = {}


def large(name):
    return name.endswith((".safetensors", ".gguf", ".bin"))


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def siblings(mode):
    files = dict(FILES)
    if mode == "bins":
        files = {n: d for n, d in files.items() if not n.endswith(".safetensors")}
    if mode == "ggufs":
        files = {"a-Q4_0.gguf": b"GGUF", "a-Q8_0.gguf": b"GGUF?", "README.md": b"r"}
    if mode == "bare":
        files = {".gitattributes": b"*", "logo.png": b"png"}
    if mode == "traversal":
        files["../../../evil.json"] = b"{}"
    out = []
    for name, data in files.items():
        row = {"rfilename": name, "size": len(data), "blobId": git_hash(data)}
        if large(name):
            row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        if mode == "wronghash" and name == "weights.safetensors":
            row["lfs"]["sha256"] = "ab" * 32
        if mode == "wronggit" and name == "config.json":
            row["blobId"] = "ab" * 20
        if mode == "toolong" and name == "weights.safetensors":
            row["lfs"]["size"] -= 1000
        if mode == "huge" and name == "weights.safetensors":
            row["lfs"]["size"] = 10**18
        if mode == "nohash":
            row = {"rfilename": name}
        out.append(row)
    return out


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self):
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self):
        with log_lock, open(log_path, "a") as f:
            print(self.server.server_port, self.path, self.headers.get("Range", "-"), self.headers.get("Authorization", "-").replace(" ", "_"), file=f)
        path = self.path.partition("?")[0]
        parts = path.strip("/").split("/")
        mode = parts[2] if parts[0] == "api" else parts[0]
        n_seen[path] = n_seen.get(path, 0) + 1
        if mode == "gated" and self.headers.get("Authorization") != "Bearer good":
            return self.reply(403, X_Error_Code="GatedRepo", X_Error_Message="Access to model gated/m is restricted.")
        if mode == "hidden":
            return self.reply(401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not\x1b[2J found")
        if mode == "busy" and n_seen[path] == 1:
            return self.reply(429, Retry_After="1")
        if mode == "later":
            return self.reply(429, Retry_After="4000")
        if mode == "down":
            return self.reply(503, Retry_After="0")
        if parts[0] == "api":
            return self.info(mode, parts[5])
        return self.file(mode, self.decode("/".join(parts[4:])), parts[3] == COMMIT)

    @staticmethod
    def decode(s):
        from urllib.parse import unquote

        return unquote(s)

    def info(self, mode, rev):
        if self.decode(rev) not in ("main", "v1", "refs/pr/1", COMMIT):
            return self.reply(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        if mode == "html":
            return self.reply(200, b"<html>log in first</html>")
        if mode == "endless":
            return self.reply(200, b"[" * (65 << 20))
        body = {"id": mode + "/m", "sha": COMMIT, "siblings": siblings(mode)}
        if mode == "nosha":
            body["sha"] = "../../../../etc/x"
        return self.reply(200, json.dumps(body).encode())

    def file(self, mode, name, known):
        data = {"a-Q4_0.gguf": b"GGUF", "a-Q8_0.gguf": b"GGUF?"}.get(name, FILES.get(name))
        if data is None or not known:
            return self.reply(404, X_Error_Code="EntryNotFound")
        target = {
            "away": f"http://localhost:{other_port(self)}{self.path.replace('away', 'plain', 1)}",
            "relative": self.path.replace("relative", "plain", 1),
            "loop": self.path,
            "plainhttp": "http://192.0.2.1/x",
            "local": "file:///etc/passwd",
            "user": f"http://me:pw@127.0.0.1:{self.server.server_port}/x",
        }.get(mode)
        if target:
            return self.reply(302, Location=target)
        first, status, headers = 0, 200, {}
        wanted = self.headers.get("Range")
        if wanted and mode == "unsatisfied":
            return self.reply(416, Content_Range=f"bytes */{len(data)}")
        if wanted and mode not in ("norange", "norangebreak"):
            first, status = int(wanted[6:-1]), 206
            headers["Content-Range"] = f"bytes {first + (5 if mode == 'wrongrange' else 0)}-{len(data) - 1}/{len(data)}"
        self.body(mode, name, data[first:], status, headers)

    def body(self, mode, name, data, status, headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k, v)
        big = name == "weights.safetensors"
        length = len(data) + (1000 if mode == "lies" and big else 0)
        if mode != "nolength":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if big and mode in ("break", "norangebreak"):
            data = data[: max(len(data) // 2, 2_000_000)] if mode == "break" else data[:3_000_000]
        if big and mode == "wrongrange" and status == 200:
            data = data[:3_000_000]
        if big and mode == "stall" and status == 200:
            self.wfile.write(data[: 1 << 20])
            time.sleep(8)
            return self.hang_up()
        if big and mode in ("slow", "slowly"):
            for i in range(0, len(data), 1 << 16):
                self.wfile.write(data[i : i + (1 << 16)])
                time.sleep(0.04)
            return
        self.wfile.write(data)
        if mode in ("break", "norangebreak", "lies", "nolength", "wrongrange"):
            self.hang_up()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that was killed


servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]


def other_port(handler):
    return next(s.server_port for s in servers if s.server_port != handler.server.server_port)


for s in servers:
    threading.Thread(target=s.serve_forever, daemon=True).start()
temp = str(ports_path) + ".tmp"
pathlib.Path(temp).write_text(" ".join(str(s.server_port) for s in servers))
os.rename(temp, ports_path)
threading.Event().wait()
