"""The proxy: the model endpoint that agents call, token-in token-out, and the only writer of model-calls.

The way of a request:
  app          the web application; walks `dialects/`, which parse it to an Ask (`exchange`: the one form of all dialects, and errors)
  histories    what of it was read before; only the rest is parsed and hashed
  service      the executions that this proxy owns; opens a call (`open_calls`: those that a client can join) and closes executions
  size         what is far too long for any context, told before it is rendered
  execution    one execution's state (gyre_engine.trees)
  prompt       what a request adds to the ids that are known (`rendering` over `tokens`)
  models       what the asked name stands for: the policy, a frozen engine, or an `upstream`
  shared_call  what clients share that wait for one answer
  call         one call: sampled (`generation`) on an engine that `router` lends by the `routes`, recorded, then answered
  role_rules   the role of a call, where a rule of the config tells it by its words
  streamed     sampled ids as text while they come
  outbox       what is put on the log, and its acknowledgement
  reply        the answer on its way to one client

Around it: `process` is the operating-system process, `settings` what it is told, `restore` what a restart reads back, `feed` what the
log tells it while it serves.
"""
