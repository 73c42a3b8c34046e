"""Stores of objects on loopback: the files of a folder by HTTP, an S3 of moto's, MinIO."""

import contextlib
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

# Before tests name another.
_HOME = Path.home()
KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "hunter2hunter2", "AWS_REGION": "us-east-1"}


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        folder = sys.argv[1]
        while os.path.exists(f"{folder}/dead"):
            time.sleep(0.01)
        path = folder + self.path.partition("?")[0]
        if not os.path.isfile(path):
            return self._answer(404)
        if os.path.exists(f"{folder}/denied"):
            return self._answer(403)
        status = os.stat(path)
        etag, size = f'"{status.st_mtime_ns}"', status.st_size
        if self.headers.get("If-Match", etag) != etag:
            return self._answer(412)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        end = min(int(found[2]) + 1 if found and found[2] else size, size)
        if found and start >= size:
            return self._answer(416, {"Content-Range": f"bytes */{size}", "ETag": etag})
        with open(path, "rb") as file:
            body = os.pread(file.fileno(), end - start, start)
        headers = {"ETag": etag, "Accept-Ranges": "bytes"}
        if found:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._answer(206 if found else 200, headers, body)

    def _answer(self, status, headers={}, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _serving(command, endpoint, **options):
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(endpoint, timeout=5).close()
                break
            except urllib.error.HTTPError:
                break  # It answers.
            except OSError:
                assert server.poll() is None and time.monotonic() < end, f"{command} does not start"
                time.sleep(0.05)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def web(folder):
    """The URL of a folder's files. While there is a file `dead` in it nothing is answered; with `denied`, nothing is given.

    In a process of its own: a load that waits for it keeps the interpreter's lock."""
    port = free_port()
    with _serving([sys.executable, __file__, str(folder), str(port)], f"http://127.0.0.1:{port}") as endpoint:
        yield endpoint


@contextlib.contextmanager
def moto():
    """The endpoint of an S3 that answers whoever asks."""
    port = free_port()
    with _serving([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], f"http://127.0.0.1:{port}") as endpoint:
        yield endpoint


def minio_path():
    """Where MinIO is; in CI it is built if need be."""
    if os.environ.get("CI") == "true":
        script = Path(__file__).parents[3] / "scripts/minio"
        return subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(_HOME)}).stdout.strip()
    return shutil.which("minio", path=os.environ.get("GOBIN") or os.path.join(os.environ.get("GOPATH") or _HOME / "go", "bin"))


@contextlib.contextmanager
def minio(folder):
    """The endpoint of a MinIO whose objects are below a folder, for those who have KEYS."""
    port = free_port()
    known = {"MINIO_ROOT_USER": KEYS["AWS_ACCESS_KEY_ID"], "MINIO_ROOT_PASSWORD": KEYS["AWS_SECRET_ACCESS_KEY"]}
    command = [minio_path(), "server", "--quiet", "--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{free_port()}", folder]
    with _serving(command, f"http://127.0.0.1:{port}", env={**os.environ, **known}) as endpoint:
        yield endpoint


def put(endpoint, bucket, key, content):
    """Puts an object there, by AWS's own client."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region_name=KEYS["AWS_REGION"],
    )
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key=key, Body=content)


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Answers).serve_forever()
