"""Tasks (queries): Harbor task directories, and the data sources from which they are drawn."""

from gyre_engine.tasks.data import FILTERS, SPLITS, Catalog, Draw, DrawOrder, Source, draw, load_catalog
from gyre_engine.tasks.datasets import DataError, task_folders
from gyre_engine.tasks.task import Task, TaskError, filled, read_task, require_local
from gyre_engine.tasks.workspace import mounts, prepare

__all__ = [
    "FILTERS",
    "SPLITS",
    "Catalog",
    "DataError",
    "Draw",
    "DrawOrder",
    "Source",
    "Task",
    "TaskError",
    "draw",
    "filled",
    "load_catalog",
    "mounts",
    "prepare",
    "read_task",
    "require_local",
    "task_folders",
]
