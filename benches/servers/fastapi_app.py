"""FastAPI on uvicorn: raw numbers in, raw numbers out, no batches. One thread runs models, others decode images."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from engine import MODELS, PORT, Engine, classes, pixels
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

app = FastAPI()
engines = {name: Engine(name) for name in MODELS}
runner = ThreadPoolExecutor(1)


async def run(engine, x):
    return await asyncio.get_running_loop().run_in_executor(runner, engine.run, x)


@app.post("/tensor/{name}")
async def tensor(name: str, request: Request):
    engine = engines[name]
    y = await run(engine, engine.tensor(await request.body()))
    return Response(y.tobytes(), media_type="application/octet-stream")


@app.post("/image")
async def image(request: Request):
    x = await run_in_threadpool(pixels, await request.body())
    return classes((await run(engines["resnet18"], x))[0])


@app.get("/ready")
def ready():
    return {}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False)
