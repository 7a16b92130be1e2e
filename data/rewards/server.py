#!/usr/bin/env python3
"""The same reward behind HTTP: `python3 data/rewards/server.py [PORT]`, then in the specification

    [reward]
    kind = "http"
    url = "http://127.0.0.1:8765/"

A POST brings {"requests": [...]} and takes {"responses": [...]}, each request and response as in reward.py, matched by `id`.
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from reward import reward


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # tidegate keeps its connections
    wbufsize = -1  # an answer in one piece: in two, the second waits 40 ms for an acknowledgement of the first

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        responses = [{"id": request["id"], **reward(request)} for request in body["requests"]]
        answer = json.dumps({"responses": responses}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass  # a line a request would drown everything else


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8765
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
