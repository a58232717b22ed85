"""A line that takes its time: passes bytes on to another port, each of them so many seconds later.

It knows nothing of what it carries. What comes at once goes on at once, so that a request takes the latency
once, however it was cut into packets; answers go back without waiting. A share of the answers can get lost:
the connection breaks instead.

    python -m benchmarks.latency HOST PORT SECONDS [LOST]   prints its own port, ends with its standard input
"""

from __future__ import annotations

import asyncio
import random
import sys

from benchmarks.process import ServerProcess

_CHUNK = 256 * 1024
_draw = random.Random(1)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float, lost: float = 0.0
) -> None:
    """Pass on what comes, in order, each piece `seconds` after it came; for a share of them, break."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        while data := await reader.read(_CHUNK):
            waiting.put_nowait((loop.time() + seconds, data))
        waiting.put_nowait((0.0, b""))

    taking = asyncio.create_task(take())
    try:
        while True:
            due, data = await waiting.get()
            if not data or _draw.random() < lost:
                return
            await asyncio.sleep(due - loop.time())
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other side is done
    finally:
        taking.cancel()
        writer.close()


async def _serve(host: str, port: int, seconds: float, lost: float = 0.0) -> None:
    carrying: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_there, to_there = await asyncio.open_connection(host, port)
        for way in (_carry(reader, to_there, seconds), _carry(from_there, writer, 0.0, lost)):
            task = asyncio.create_task(way)
            carrying.add(task)
            task.add_done_callback(carrying.discard)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    for task in list(carrying):
        task.cancel()


class Latency(ServerProcess):
    """The line as a process of its own, in front of a port of 127.0.0.1."""

    def __init__(self, port: int, seconds: float, lost: float = 0.0) -> None:
        """Take the port behind it, the latency, and the share of answers that get lost."""
        super().__init__("benchmarks.latency", "127.0.0.1", port, seconds, lost)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])))
