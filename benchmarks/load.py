"""Load on a gateway: `python -m benchmarks.load URL KEY SECONDS CONNECTIONS whole|stream`."""

import asyncio
import json
import sys
import time

from benchmarks.measure import report

_END = b"0\r\n\r\n"


def request(host: str, key: str, *, stream: bool) -> bytes:
    body = json.dumps(
        {
            "model": "bench-0",
            "messages": [{"role": "user", "content": "Say hello to the whole world, in one word. " * 10}],
            **({"stream": True} if stream else {}),
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> None:
    """Read one answer to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode("latin-1") + (await reader.read(500)).decode("latin-1"))
    if b"transfer-encoding: chunked" in head:
        while (size := int(await reader.readline(), 16)) > 0:
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
        return
    fields = (line.partition(b":") for line in head.split(b"\r\n"))
    await reader.readexactly(next(int(value) for name, _, value in fields if name == b"content-length"))


async def client(host: str, port: int, sent: bytes, until: float, taken: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    while (began := time.perf_counter()) < until:
        writer.write(sent)
        await answer(reader)
        taken.append((time.perf_counter() - began) * 1000)
    writer.close()


async def main(url: str, key: str, seconds: float, connections: int, kind: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    sent = request(host, key, stream=kind == "stream")
    warm = time.perf_counter() + min(1.0, seconds / 3)
    await asyncio.gather(*(client(host, int(port), sent, warm, []) for _ in range(connections)))  # noqa: TID251
    began = time.perf_counter()
    taken: list[float] = []
    until = began + seconds
    await asyncio.gather(*(client(host, int(port), sent, until, taken) for _ in range(connections)))  # noqa: TID251
    spent = time.perf_counter() - began
    taken.sort()
    report(
        per_s=[len(taken) / spent], p50_ms=[taken[len(taken) // 2]], p99_ms=[taken[int(len(taken) * 0.99)]]
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
