"""``python -m tests.bench.load``: many hosts that post to the agent API, in a process of their own. Reads one JSON object from
stdin (``host``, ``port``, ``path``, ``connections``, ``seconds``, ``rate`` a second or 0 for as fast as it goes, ``plain``
to go around the fast door, and ``posts``: pairs of secret and body), writes one to stdout: how many were answered, refused, and how long that took.
"""

import asyncio
import json
import sys
import time
from typing import Any

import uvloop


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    await reader.readexactly(length)
    return int(head[9:12])


async def _run(plan: dict[str, Any]) -> dict[str, Any]:
    # The fast door leaves what is encoded to the endpoints.
    plain = "Content-Encoding: identity\r\n" if plan["plain"] else ""
    requests = [
        (
            f"POST {plan['path']} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
            f"{plain}Content-Type: application/json\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}"
        ).encode()
        for secret, body in plan["posts"]
    ]
    begun = time.monotonic()
    end = begun + plan["seconds"]
    took: list[float] = []
    refused = 0
    late = 0.0
    number = 0

    async def client() -> None:
        nonlocal refused, late, number
        reader, writer = await asyncio.open_connection(plan["host"], plan["port"])
        while True:
            mine, number = number, number + 1
            if plan["rate"]:
                due = begun + mine / plan["rate"]
                if due >= end:
                    break
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                late = max(late, time.monotonic() - due)
            elif time.monotonic() >= end:
                break
            sent = time.monotonic()
            status = await _post(reader, writer, requests[mine % len(requests)])
            took.append(time.monotonic() - sent)
            refused += status != 200
        writer.close()

    await asyncio.gather(*(client() for _ in range(plan["connections"])))
    took.sort()
    return {
        "answered": len(took),
        "refused": refused,
        "seconds": time.monotonic() - begun,
        "median_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[len(took) * 99 // 100],
        "most_ms": 1000 * took[-1],
        "late_ms": 1000 * late,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(_run(json.load(sys.stdin)))))
