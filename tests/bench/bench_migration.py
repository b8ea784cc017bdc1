"""KV that moves to another engine against KV that is computed again there, by context length; and whether the rule picks the faster.

Two native engines as processes, fp32 on one CPU thread each, KV read over TCP as in a run. For each length, by turns and repeated:

move      export at the source, one-sided read and import at the destination, release; then the first token there
prefill   the first token there of as many tokens that nobody has cached

The rule (`gyre_engine.scheduling.migration.KvCosts`) sees what a scheduler sees: the events' figures, of what came before.
The last line is one JSON object:

crossover_tokens       where both cost the same, between the lengths measured (log-linear); 0: a move is always faster
right_choice_fraction  of the cases whose medians differ by more than their repeats do: those in which the rule picks the faster
table                  [tokens, median ms of a move, median ms of a prefill, bytes]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import secrets
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from gyre_engine.events.cells import CellHealth, KvExported, KvImported
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.port import GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.scheduling.migration import KvCosts
from tests.bench.bench_proxy import answers, free_port
from tests.bench.bench_switch import child

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
REPEATS = int(os.environ.get("REPEATS", "4"))
CONTEXT = 40_960
FIRST = SamplingParams(max_tokens=1)
ENDLESS = SamplingParams(max_tokens=CONTEXT // 8)


def serve(folder: str, port: int, secret: bytes) -> None:
    from producers.cells.engine_server import run_engine_server

    run_engine_server(folder, "0", host="127.0.0.1", port=port, kv_capacity=131_072, max_batch=2, kv_secret=secret)


class Pair:
    """Source and destination, and what was measured."""

    def __init__(self, source: SGLangEngine, destination: SGLangEngine) -> None:
        self.source, self.destination = source, destination
        self.rng = random.Random(7)
        self.costs = KvCosts()
        self.moves: dict[int, list[float]] = {n: [] for n in LENGTHS}
        self.prefills: dict[int, list[float]] = {n: [] for n in LENGTHS}
        self.chosen: dict[int, list[bool]] = {n: [] for n in LENGTHS}
        self.nbytes: dict[int, int] = {}

    def prompt(self, tokens: int) -> list[int]:
        return [self.rng.randrange(QUICKSTART.vocab) for _ in range(tokens)]

    async def round(self, number: int) -> None:
        for tokens in self.rng.sample(LENGTHS, len(LENGTHS)):
            if number:
                self.chosen[tokens].append(self.costs.moving_pays(tokens))
            self.moves[tokens].append(await self.move(tokens))
            self.prefills[tokens].append(await self.prefill(tokens))

    async def move(self, tokens: int) -> float:
        """Seconds from the drain to the first token at the destination."""
        ids, rid = self.prompt(tokens), f"e-{secrets.token_hex(6)}.1"
        chunks = self.source.generate(GenerateRequest(rid, ids, ENDLESS))
        ids += (await anext(chunks)).output_ids
        await self.source.drain()
        async for chunk in chunks:
            ids += chunk.output_ids
        began = time.perf_counter()
        ticket = await self.source.export_kv(rid, lease=60)
        exported = time.perf_counter()
        assert ticket is not None
        taken = await self.destination.import_kv(ticket)
        imported = time.perf_counter()
        await self.source.release_kv(ticket)
        answer = await complete(self.destination, GenerateRequest(secrets.token_hex(6), ids, FIRST))
        took = time.perf_counter() - began
        assert answer.cached_tokens == taken == ticket.tokens
        await self.source.resume()
        self.nbytes[tokens] = ticket.nbytes
        self._tell(rid, ticket.tokens, ticket.nbytes, exported - began, imported - exported)
        return took

    async def prefill(self, tokens: int) -> float:
        """Seconds to the first token of a prompt that is new."""
        began = time.perf_counter()
        answer = await complete(self.destination, GenerateRequest(secrets.token_hex(6), self.prompt(tokens), FIRST))
        took = time.perf_counter() - began
        assert not answer.cached_tokens
        newest = (await self.destination.stats()).prefills[-1:]
        self.costs = self.costs.observe(CellHealth(cell="b", incarnation="1", healthy=True, prefills=newest))
        return took

    def _tell(self, rid: str, tokens: int, nbytes: int, export_s: float, import_s: float) -> None:
        """What the cells' events say."""
        exported = KvExported(
            cell="a", incarnation="1", command_epoch=1, command_number=1, execution="e", rid=rid, destination="b", tokens=tokens,
            nbytes=nbytes, weight_version="0", ticket=b"", took_us=int(1e6 * export_s),
        )  # fmt: skip
        imported = KvImported(
            cell="b", incarnation="1", source="a", command_epoch=1, command_number=1, execution="e", rid=rid, tokens=tokens,
            nbytes=nbytes, took_us=int(1e6 * import_s),
        )  # fmt: skip
        self.costs = self.costs.observe(exported).observe(imported)

    def result(self) -> dict[str, object]:
        right: list[bool] = []
        table = []
        for tokens in LENGTHS:
            moves, prefills = self.moves[tokens][1:], self.prefills[tokens][1:]
            move, prefill = statistics.median(moves), statistics.median(prefills)
            table.append([tokens, round(1e3 * move, 1), round(1e3 * prefill, 1), self.nbytes[tokens]])
            if abs(move - prefill) > max(max(moves) - min(moves), max(prefills) - min(prefills)):
                right += [choice == (move < prefill) for choice in self.chosen[tokens]]
            print(
                f"{tokens:6d} tokens: move {1e3 * move:8.1f} ms, prefill {1e3 * prefill:8.1f} ms, chose to move: {self.chosen[tokens]}"
            )
        return {"crossover_tokens": self._crossover(), "right_choice_fraction": round(sum(right) / len(right), 3),
                "cases": len(right), "table": table}  # fmt: skip

    def _crossover(self) -> int:
        ratios = [math.log(statistics.median(self.moves[n][1:]) / statistics.median(self.prefills[n][1:])) for n in LENGTHS]
        for (a, b), (x, y) in zip(itertools.pairwise(LENGTHS), itertools.pairwise(ratios), strict=True):
            if x > 0 >= y:
                return round(math.exp(math.log(a) + (math.log(b) - math.log(a)) * x / (x - y)))
        return 0 if ratios[0] <= 0 else LENGTHS[-1]


async def measure(ports: list[int]) -> dict[str, object]:
    for port in ports:
        await answers(port)
    source, destination = (SGLangEngine(f"http://127.0.0.1:{port}") for port in ports)
    pair = Pair(source, destination)
    for number in range(REPEATS):
        await pair.round(number)
    await source.close()
    await destination.close()
    return pair.result()


def main() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gyre-bench-"))
        write_fresh_model(Path(folder), replace(QUICKSTART, max_context=CONTEXT), seed=1)
        secret, ports = secrets.token_hex(16).encode(), [free_port(), free_port()]
        for port in ports:
            stack.enter_context(child(serve, folder, port, secret))
        found = asyncio.run(measure(ports))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
