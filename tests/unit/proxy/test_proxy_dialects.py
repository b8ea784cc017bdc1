"""The web application knows no dialect by name: what is registered is served, and errors are in the words of who asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gyre_engine.keys import mint
from producers.proxy import app
from producers.proxy.dialects import registry
from producers.proxy.dialects.chat import Chat
from producers.proxy.dialects.port import Counts, Refuses
from producers.proxy.exchange import ProxyError
from tests.unit.proxy.conftest import SECRET, MakeStack, Stack, user

KEY = {"authorization": f"Bearer {mint(SECRET, 'g.0.0')}"}
ANTHROPIC = {"anthropic-version": "2023-06-01"}


def _gone() -> ProxyError:
    return ProxyError(410, "gone", "this has moved")


class Fourth(Chat):
    """A dialect that only this test has."""

    name = "fourth"
    path = "/v4/answers"
    beside: Sequence[Counts | Refuses] = (
        Counts("/v4/tokens", lambda tokens: b'{"n": %d}' % tokens),
        Refuses("/v4/answers", "GET", _gone),
    )

    def speaks(self, headers: Mapping[str, str]) -> bool:
        return "x-fourth" in headers

    def models(self, names: Sequence[str]) -> bytes:
        return ",".join(names).encode()


@pytest.fixture
def four(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    dialects = (*registry.DIALECTS, Fourth())
    monkeypatch.setattr(registry, "DIALECTS", dialects)
    monkeypatch.setattr(app, "DIALECTS", dialects)
    return make_stack()


async def test_a_fourth_dialect_is_one_entry(four: Stack) -> None:
    four.says("ok")
    body: dict[str, Any] = {"model": "policy", "messages": [user("q")]}
    assert (await four.client.post("/v4/answers", json=body, headers=KEY)).json()["choices"][0]["message"]["content"] == "ok"
    [record] = four.calls()
    assert record.dialect == "fourth"
    assert (await four.client.post("/v4/tokens", json=body, headers=KEY)).json() == {"n": record.prompt_tokens}
    assert (await four.client.get("/v4/answers")).status_code == 410
    assert (await four.client.get("/v1/models", headers={**KEY, "x-fourth": "1"})).content == b"policy"


@pytest.mark.parametrize(
    ("path", "headers", "anthropics"),
    [
        ("/v1/nothing", {}, False),
        ("/v1/nothing", ANTHROPIC, True),
        ("/v1/messages/nothing", {}, True),
        ("/v1/chat/completions/nothing", ANTHROPIC, False),
        ("/v1/responses/nothing", ANTHROPIC, False),
    ],
)
async def test_an_error_is_in_the_words_of_the_path_or_of_the_client(
    stack: Stack, path: str, headers: dict[str, str], anthropics: bool
) -> None:
    response = await stack.client.get(path, headers=headers)
    assert response.status_code == 404
    assert (response.json().get("type") == "error") is anthropics


async def test_the_list_of_models_is_in_the_words_of_the_client(stack: Stack) -> None:
    openais = (await stack.client.get("/v1/models", headers=KEY)).json()
    anthropics = (await stack.client.get("/v1/models", headers={**KEY, **ANTHROPIC})).json()
    assert openais["object"] == "list" and [model["id"] for model in openais["data"]] == ["policy"]
    assert anthropics["has_more"] is False and [model["id"] for model in anthropics["data"]] == ["policy"]
