"""SGLang's own server, with the routes for KV that moves: `python -m gyre_engine.sampling.hicache.server` and SGLang's arguments.

promises  what SGLang serves is SGLang's; beside it there are /drain, /kv_export, /kv_import, /kv_release and /kv_state, and a drained
          engine refuses requests (`moves`)

The folder of the ranks' sockets stands in `--hicache-storage-backend-extra-config`; without it the server says who was interrupted and
that there is no KV. SGLang starts its processes anew from this file, so nothing happens on import.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gyre_engine.sampling.hicache.control import forget
from gyre_engine.sampling.hicache.moves import KvMiddleware, Moves


class SGLang:
    """The tokenizer manager of this process, once it is there."""

    def _manager(self) -> Any:
        from sglang.srt.entrypoints.http_server import get_global_state

        return get_global_state().tokenizer_manager

    def in_flight(self) -> Mapping[str, Callable[[], list[int]]]:
        """See moves.Engine."""
        return {rid: _ids_of(state) for rid, state in self._manager().rid_to_state.items() if not state.finished}

    async def pause(self) -> None:
        """See moves.Engine."""
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        await self._manager().pause_generation(PauseGenerationReqInput(mode="abort"))

    async def flush(self, seconds: float) -> bool:
        """See moves.Engine."""
        return bool((await self._manager().flush_cache(timeout_s=seconds)).success)


def _ids_of(state: Any) -> Callable[[], list[int]]:
    prompt = [int(token) for token in state.obj.input_ids or ()]
    return lambda: [*prompt, *map(int, state.output_ids)]


def sockets_of(extra_config: str | None) -> Path | None:
    """The folder that an extra config names."""
    given = json.loads(extra_config) if extra_config and not extra_config.startswith("@") else {}
    return Path(given["sockets"]) if "sockets" in given else None


def main(argv: list[str]) -> None:
    """Serve until SGLang ends."""
    from sglang.launch_server import run_server
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    arguments = prepare_server_args(argv)
    sockets = sockets_of(arguments.hicache_storage_backend_extra_config)
    if sockets is not None and sockets.exists():
        forget(sockets)
    app.add_middleware(KvMiddleware, moves=Moves(SGLang(), sockets))
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
