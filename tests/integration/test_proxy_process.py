"""The proxy as a process over real Kafka: killed between two turns, ended while a call runs, and left by its client."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gyre_engine.events.calls import Continuity, Finish, ModelCall, ProxyOwns
from gyre_engine.events.cells import CellRole, CellStarted
from gyre_engine.keys import internal_token, mint
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from producers.proxy.tokens import ChatTokenizer
from tests.integration.proxy_process import Child, ProxyChild, free_port, serve_engine
from tests.unit.proxy.conftest import BASH, make_tokenizer, tool, tool_call, user

SECRET = b"0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def engine(model: Path, kafka_log: KafkaLog) -> Iterator[Child]:
    tokenizer = ChatTokenizer.load(model)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    call, done = tokenizer.encode(tool_call("bash", '{"a":  1}')), tokenizer.encode("done")
    port = free_port()
    child = Child(serve_engine, ((*call, end), (*done, end)), port, "1")
    wait_for(port)
    kafka_log.append_all(
        [
            CellStarted(
                cell="a",
                position=0,
                incarnation="1",
                engine="scripted",
                engine_url=f"http://127.0.0.1:{port}",
                capacity=8,
                role=CellRole.SAMPLING,
                weight_version=0,
            )
        ]
    )
    yield child
    child.end()


def wait_for(port: int, limit: float = 60.0) -> None:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on {port}")


def client(proxy: ProxyChild) -> openai.OpenAI:
    return openai.OpenAI(api_key=mint(SECRET, "g.0.0"), base_url=f"{proxy.url}/v1", max_retries=0, timeout=60)


def calls(log: KafkaLog) -> list[ModelCall]:
    return [record.event for record in log.read("model-calls") if isinstance(record.event, ModelCall)]


def test_a_proxy_that_is_killed_between_two_turns_goes_on_bridged(
    engine: Child, model: Path, open_log: Callable[..., KafkaLog], kafka_log: KafkaLog, kafka_settings: KafkaSettings
) -> None:
    history: list[Any] = [user("go")]
    first = ProxyChild(model, kafka_settings, kafka_log.run, name="one")
    with client(first) as agent:
        message = agent.chat.completions.create(model="policy", messages=history, tools=[BASH]).choices[0].message  # type: ignore[list-item]
    first.kill()
    assert message.tool_calls
    history += [message.model_dump(exclude_none=True), tool(message.tool_calls[0].id, "out")]
    second = ProxyChild(model, kafka_settings, kafka_log.run, name="two", renderer="auto")
    with client(second) as agent:
        stream = agent.chat.completions.create(model="policy", messages=history, tools=[BASH], stream=True)  # type: ignore[list-item]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == "done"
    one, two = calls(kafka_log)
    assert two.continuity is Continuity.BRIDGED and two.parent == one.call and two.number == 1
    assert two.prefix_len == one.prompt_tokens + len(one.output_ids)
    owners = [r.event for r in kafka_log.read("model-calls") if isinstance(r.event, ProxyOwns)]
    assert [(owner.owner_epoch, owner.proxy) for owner in owners] == [(1, "one"), (2, "two")]
    headers = {"authorization": f"Bearer {internal_token(SECRET)}"}
    closed = httpx.post(f"{second.url}/internal/executions/g.0.0/close", headers=headers, timeout=60).json()
    assert closed["calls"] == 2 and closed["tokens"] == len(one.output_ids) + len(two.output_ids)
    assert second.end() == 0


def test_a_client_that_hangs_up_while_no_cell_samples_is_recorded_as_cancelled(
    model: Path, kafka_log: KafkaLog, kafka_settings: KafkaSettings
) -> None:
    proxy = ProxyChild(model, kafka_settings, kafka_log.run)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{proxy.url}/v1/chat/completions",
            json={"model": "policy", "messages": [user("q")]},
            headers={"authorization": f"Bearer {mint(SECRET, 'g.0.0')}"},
            timeout=0.5,
        )
    until = time.monotonic() + 5
    while not (found := calls(kafka_log)) and time.monotonic() < until:
        time.sleep(0.05)
    assert [call.finish for call in found] == [Finish.CANCELLED] and found[0].queued_us > 0
    assert proxy.end() == 0


def test_a_proxy_that_is_told_to_end_records_what_runs(model: Path, kafka_log: KafkaLog, kafka_settings: KafkaSettings) -> None:
    proxy = ProxyChild(model, kafka_settings, kafka_log.run, quiet_s=0.2)
    with httpx.stream(
        "POST",
        f"{proxy.url}/v1/chat/completions",
        json={"model": "policy", "messages": [user("q")], "stream": True},
        headers={"authorization": f"Bearer {mint(SECRET, 'g.0.0')}"},
        timeout=60,
    ) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": waiting"
        proxy.process.terminate()
        rest = list(lines)
    assert "call_cancelled" in rest[-4] + rest[-3] + rest[-2] and "data: [DONE]" in rest
    proxy.process.join(20)
    assert proxy.process.exitcode == 0
    assert [call.finish for call in calls(kafka_log)] == [Finish.CANCELLED]
