"""Measure the service against the library; writes ``results/service.json``.

``OMP_NUM_THREADS=1 python tests/bench/service.py`` takes a few minutes on one thread.
Eight clients on the loopback address, each of which sends its next request when the
last is answered, ask SmolLM2-135M one question per ticket; blocks of theirs alternate
with the same requests in batches of eight without the service, so that both see the
same machine. Then more clients than the queue holds ask at once. With a number of
blocks as its argument it measures so many and only prints.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import uvicorn

from rlcd_core.data.triage import DEPARTMENT, tickets
from rlcd_core.decider import Decider
from rlcd_core.extra.batching import answer_batch
from rlcd_core.extra.service import Limits, make_app
from rlcd_core.files import write_atomically
from rlcd_core.records import hardware, results_dir, versions

CLIENTS = 8
ROUNDS = 5  # requests of each client in a block
BLOCKS = 5
CROWD = 48
QUESTION = {"department": DEPARTMENT}


def send(port: int, state: str) -> tuple[int, float, Any]:
    """Status, seconds and body of one request."""
    named = {name: q.to_dict() for name, q in QUESTION.items()}
    body = json.dumps({"state": state, "questions": named})
    begun = time.perf_counter()
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    line.request("POST", "/ask", body, {"Content-Type": "application/json"})
    reply = line.getresponse()
    told = json.loads(reply.read())
    taken = time.perf_counter() - begun
    line.close()
    return reply.status, taken, told


def main(blocks: int = BLOCKS) -> None:
    """Measure; write the record if all blocks were run."""
    decider = Decider.load(max_tokens=2048)
    drawn = tickets(CLIENTS * ROUNDS * blocks + CROWD, np.random.default_rng(9))
    states = [str(item.state) for item in drawn]
    limits = Limits(waiting=16, batch=CLIENTS, seconds=600)
    server = uvicorn.Server(
        uvicorn.Config(make_app(decider, limits=limits), log_config=None)
    )
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    port = place.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([place],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    asked = list(QUESTION.values())

    def offline(states: list[str]) -> tuple[list[float], list[Any]]:
        seconds, answers = [], []
        for start in range(0, len(states), CLIENTS):
            batch = [(state, asked) for state in states[start : start + CLIENTS]]
            begun = time.perf_counter()
            answers += answer_batch(decider, batch)
            seconds.append(time.perf_counter() - begun)
        return seconds, answers

    batches: list[float] = []
    latencies: list[float] = []
    served = 0.0
    gap = 0.0
    offline(states[:CLIENTS])  # warm
    with ThreadPoolExecutor(CLIENTS) as clients:
        for block in range(blocks):
            size = CLIENTS * ROUNDS
            chosen = states[block * size : (block + 1) * size]
            lines = [chosen[k::CLIENTS] for k in range(CLIENTS)]

            def client(line: list[str]) -> list[tuple[int, float, Any]]:
                return [send(port, state) for state in line]

            begun = time.perf_counter()
            replies = list(clients.map(client, lines))
            served += time.perf_counter() - begun
            seconds, answers = offline(chosen)
            batches += seconds
            by_state = dict(zip(chosen, answers, strict=True))
            for line, told in zip(lines, replies, strict=True):
                for state, (status, taken, body) in zip(line, told, strict=True):
                    assert status == 200, body
                    latencies.append(taken)
                    found = body["answers"]["department"]["probabilities"].values()
                    change = np.abs(np.subtract(list(found), by_state[state][0].p))
                    gap = max(gap, float(change.max()))
            print(block, statistics.median(batches), max(latencies), flush=True)
    with ThreadPoolExecutor(CROWD) as crowd:
        replies = list(crowd.map(lambda s: send(port, s), states[-CROWD:]))
    codes = [status for status, _, _ in replies]
    refused = [taken for status, taken, _ in replies if status == 503]
    server.should_exit = True
    thread.join()
    batch = statistics.median(batches)
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    count = len(latencies)
    found = {
        "setup": {
            "clients": CLIENTS,
            "requests": count,
            "blocks": blocks,
            "policy": "letters, SmolLM2-135M-Instruct, float32",
            "clock": "wall time, blocks of service and library alternate",
            "crowd": CROWD,
            "waiting": limits.waiting,
        },
        "batch_of_8_seconds": round(batch, 3),
        "p50_over_batch": round(float(p50 / batch), 3),
        "p99_over_batch": round(float(p99 / batch), 3),
        "slowest_batch_over_batch": round(max(batches) / batch, 3),
        "throughput_over_offline": round((count / served) / (count / sum(batches)), 3),
        "largest_difference": float(f"{gap:.2g}"),
        "overload": {
            "answered": codes.count(200),
            "refused": codes.count(503),
            "other": len(codes) - codes.count(200) - codes.count(503),
            "slowest_refusal_over_batch": round(max(refused, default=0.0) / batch, 3),
        },
        "hardware": hardware(),
        "versions": versions(),
    }
    data = json.dumps(found, sort_keys=True, indent=1) + "\n"
    if blocks == BLOCKS:
        write_atomically(results_dir() / "service.json", data.encode())
    print(data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
