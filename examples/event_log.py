"""An event log over HTTP: FastAPI on top of a seglog partition.

    pip install seglog fastapi uvicorn
    uvicorn event_log:app --timeout-graceful-shutdown 3     # one worker: a partition has one writer

    curl -d 'signed up' 'localhost:8000/events/ada'        # {"offset":0}, and the event is on the disk
    curl 'localhost:8000/events?start=0'                   # what is there
    curl -N 'localhost:8000/events/stream?start=0'         # what is there, then what comes (server-sent events)

A stream never ends by itself, so on SIGTERM uvicorn would wait for its client forever: after the 3 seconds it ends the
streams, and the log is closed.
"""
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

import seglog
from seglog.errors import OffsetOutOfRangeError

PATH = os.environ.get("EVENTS", "data/events-0")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with seglog.aio.open(PATH) as log:        # all requests that append meanwhile share one sync of the disk
        app.state.log = log
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(OffsetOutOfRangeError)
async def out_of_range(request: Request, error: OffsetOutOfRangeError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=404)        # beyond the end, or removed by retention


def shown(record: seglog.Record) -> dict[str, object]:
    return {
        "offset": record.offset, "time_ms": record.timestamp, "user": (record.key or b"").decode(),
        "event": (record.value or b"").decode(),
    }


@app.post("/events/{user}")
async def append(user: str, request: Request) -> dict[str, int]:
    return {"offset": await app.state.log.append(await request.body(), key=user.encode())}


@app.get("/events")
async def read(start: int = 0, limit: int = 100) -> list[dict[str, object]]:
    found = []
    async for record in app.state.log.read(start):
        found.append(shown(record))
        if len(found) == limit:
            break
    return found


@app.get("/events/stream")
async def stream(start: int = 0) -> StreamingResponse:
    records = app.state.log.follow(start)       # here, so that a wrong start has an answer of its own

    async def events() -> AsyncIterator[str]:
        async for record in records:
            yield f"id: {record.offset}\ndata: {json.dumps(shown(record))}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
