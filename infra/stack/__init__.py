"""A run's stack: the broker, the topics and the processes of one run, in one folder.

`checks` says what must hold before, `session` takes a run from its start to its end, `processes` and `entries` say what runs and where
each begins, `wiring` and `launch` what each is told, `layout` where things are kept, `kafka` how the log is reached, `ports` which are
free, `weights` and `standing` what a run starts from and stands at, `health` how its consumers are doing.
"""
