"""KV that moves between SGLang servers, through a HiCache storage backend that lives inside SGLang (docs/kv.md).

SGLang's dynamic backend interface loads `storage`'s class into each of its scheduler processes; there it keeps pages that SGLang
writes through (`store`), hands them to other cells and takes theirs, one-sided (`desk`), and listens at a socket (`control`). `server`
is SGLang's own HTTP server with the routes that SGLang lacks (`moves`), in front of those sockets.

All of this runs in SGLang's environment: the standard library, numpy, msgpack, and, in `storage` and `server` alone, torch and sglang.
"""
