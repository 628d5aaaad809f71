"""A client of the gateway that shows what is on the wire."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.gateway.stored.serving import MASTER


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Client:
    address: str
    key: str = MASTER
    bearer: bool = False

    def send(self, method: str, path: str, body: bytes | None = None, /, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.address + path, body, method=method)
        key = {"authorization": f"Bearer {self.key}"} if self.bearer else {"x-api-key": self.key}
        for name, value in {**key, **named}.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return _answer(response.status, response)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: object) -> Answer:
        return self.send("POST", path, json.dumps(body).encode(), content_type="application/json")

    def new(self, **fields: object) -> "Client":
        """A client with a new key."""
        made = self.post("/key/generate", fields)
        assert made.status == 200, made
        return Client(self.address, made.body["key"])

    def upload(self, data: bytes, disposition: str = 'name="file"; filename="a.txt"', **more: str) -> Answer:
        form = b"--limit\r\nContent-Disposition: form-data; " + disposition.encode("utf-8", "surrogateescape")
        form += b"\r\nContent-Type: text/plain\r\n\r\n" + data + b"\r\n--limit--\r\n"
        return self.send(
            "POST", "/v1/files", form, content_type="multipart/form-data; boundary=limit", **more
        )


def _answer(status: int, response: Any) -> Answer:
    raw: bytes = response.read()
    headers = {name.lower(): value for name, value in response.headers.items()}
    is_json = headers.get("content-type", "").startswith("application/json")
    return Answer(status, json.loads(raw) if is_json else raw, headers)
