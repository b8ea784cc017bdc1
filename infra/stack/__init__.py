"""A run's stack: the broker, the topics and the processes of one run, in one folder.

`checks` says what must hold before, `session` takes a run from its start to its end, `processes`, `cells` and `entries` say what runs
and where each begins, `wiring` and `launch` what each is told, `layout` where things are kept, `kafka` how the log is reached, `ports`
which are free, `weights` and `versions` what a run is pinned to, `health` how its consumers are doing, `standing` what serves without
a run. `far_run` and `far_cell` are the same for a cell of this host in a run elsewhere.
"""
