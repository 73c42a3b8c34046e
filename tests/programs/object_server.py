"""A store: serves the files of a folder over HTTP on loopback, with ranges, ETags and If-Match. Prints its port."""
import hashlib
import http.server
import os
import re
import sys

folder = sys.argv[1]
etags = {name: '"%s"' % hashlib.md5(open(os.path.join(folder, name), "rb").read()).hexdigest() for name in os.listdir(folder)}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else the kernel waits with what follows the headers.
    disable_nagle_algorithm = True

    def do_GET(self):
        name = self.path.lstrip("/")
        if name not in etags:
            return self.answer(404, 0)
        if self.headers.get("If-Match", etags[name]) != etags[name]:
            return self.answer(412, 0)
        length = os.path.getsize(os.path.join(folder, name))
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), min(int(asked[2] or length), length - 1)) if asked else (0, length - 1)
        headers = {"ETag": etags[name], "Accept-Ranges": "bytes", "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last}/{length}"
        self.answer(206 if asked else 200, last - first + 1, headers)
        if self.command == "GET":
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(first)
                self.wfile.write(file.read(last - first + 1))

    do_HEAD = do_GET

    def answer(self, status, length, headers={}):
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
