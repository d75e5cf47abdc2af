"""A web service that lets a worker do the work, and answers with its result.

    uvicorn shop:web                               # in this folder; needs FastAPI and uvicorn
    miniq worker shop:app --concurrency 4

    curl -s 127.0.0.1:8000/invoices -d '{"customer": "ann", "lines": [{"text": "bolt", "cents": 250}]}' \
        -H 'Content-Type: application/json'
    curl -s 127.0.0.1:8000/invoices/ID
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

import miniq

app = miniq.App()  # MINIQ_URL, or http://127.0.0.1:5000
QUICK = 2.0
"""Seconds for which a request waits for the work to be done."""
KEPT = 3600
"""Seconds for which results can be asked for."""


class Line(BaseModel):
    text: str
    cents: int


class Invoice(BaseModel):
    customer: str
    lines: list[Line]


class Written(BaseModel):
    number: str
    cents: int


class Answer(BaseModel):
    id: str
    status: str
    invoice: Written | None = None


@app.task(queue="invoices", timeout=60, max_receives=5, results=KEPT)
async def write_invoice(invoice: Invoice) -> Written:
    cents = sum(line.cents for line in invoice.lines)
    if cents <= 0:
        raise miniq.Reject("an invoice of nothing")
    await asyncio.sleep(0.01)  # the work
    return Written(number=f"{invoice.customer}-{cents}", cents=cents)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with app:  # closes its connections at the end
        # The worker sets this as well; the first request may come before it has started.
        await (await app.client_async()).queue("invoices").configure(results=KEPT)
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/invoices", status_code=201)
async def create(invoice: Invoice, response: Response) -> Answer:
    """Answers with the invoice if it is written soon, and otherwise with an id (202): the work is on disk."""
    job = await write_invoice.send_async(invoice)
    answer = await _answer(job.id, QUICK)
    if answer.invoice is None:
        response.status_code = 202
    return answer


@web.get("/invoices/{id}")
async def status(id: str, wait: float = 0) -> Answer:
    return await _answer(id, min(wait, 30.0))


async def _answer(id: str, wait: float) -> Answer:
    try:
        return Answer(id=id, status="done", invoice=await write_invoice.job(id).result_async(wait=wait))
    except miniq.ResultTimeout:
        return Answer(id=id, status="waiting")
    except miniq.TaskFailed as failed:
        raise HTTPException(422, failed.error.partition("\n")[0]) from None
    except miniq.NotFound:
        raise HTTPException(404, "no such invoice") from None
