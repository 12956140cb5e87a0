"""The graph of a program's tasks: which must come after which, and how much that leaves to gain.

Tasks are numbered in program order and edges point forward. The kept edges are the transitive
reduction, which is unique: each orders two tasks that no path through a third one orders. The
bounds say what speed-up over one stream no schedule can exceed (`bound`), and what a simple one
reaches (`bound_list`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

from kscheduler._core import HazardTracker
from kscheduler.hazards import hazards_between
from kscheduler.task import Task

__all__ = ["TaskGraph", "Weight"]

Weight = Literal["count", "seconds"]

HOST_KINDS = frozenset({"torch", "opaque"})  # run one after the other on the program's thread


class TaskGraph:
    """Tasks and the edges between them.

    A task of kind ``"loop"`` is one node; its body is a graph of its own.

    Args:
        tasks: In program order.
        edges: Pairs (before, after) of task indices; those implied by others are dropped.

    Raises:
        ValueError: If an edge does not point forward, or names a task that does not exist.
    """

    def __init__(self, tasks: Sequence[Task], edges: Iterable[tuple[int, int]]) -> None:
        self.tasks = list(tasks)
        self.predecessors = _reduced(len(self.tasks), edges)
        self.edges = [(a, b) for b, before in enumerate(self.predecessors) for a in before]
        self.successors: list[list[int]] = [[] for _ in self.tasks]
        for a, b in self.edges:
            self.successors[a].append(b)

    @classmethod
    def from_tasks(cls, tasks: Sequence[Task]) -> TaskGraph:
        """Finds the edges from the tasks' accesses."""
        tracker = HazardTracker()
        edges = [
            (before, index)
            for index, task in enumerate(tasks)
            for before in tracker.add(index, task.accesses)
        ]
        return cls(tasks, edges)

    @cached_property
    def bodies(self) -> dict[int, TaskGraph]:
        """The graph of one iteration, for each loop that has a body."""
        return {i: TaskGraph.from_tasks(t.body) for i, t in enumerate(self.tasks) if t.body}

    def levels(self) -> list[list[int]]:
        """Task indices by depth; every task comes after some task of the level before."""
        depths: list[int] = []
        for before in self.predecessors:
            depths.append(1 + max((depths[a] for a in before), default=-1))
        levels: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
        for index, depth in enumerate(depths):
            levels[depth].append(index)
        return levels

    @property
    def width_mean(self) -> float:
        """Tasks per level, 0.0 without tasks."""
        return len(self.tasks) / max(1, len(self.levels()))

    @property
    def width_peak(self) -> int:
        """Tasks of the widest level, 0 without tasks."""
        return max(map(len, self.levels()), default=0)

    def work(self, weight: Weight = "seconds") -> float:
        """What all tasks take one after the other, in tasks or seconds.

        A loop's seconds are those of all its iterations; by count it is one iteration of its body.
        """
        return sum(self._costs(weight))

    def ranks(self, weight: Weight = "seconds") -> list[float]:
        """For each task the longest path from its start to the end, the usual priority."""
        return self._ranks(self._costs(weight))

    def critical_path(self, weight: Weight = "count") -> tuple[float, list[int]]:
        """The longest path, a loop counting as a whole.

        Args:
            weight: ``"count"`` or ``"seconds"`` (measured; as count if no time is known).

        Returns:
            Its length in tasks or seconds, and its task indices in order.
        """
        ranks = self.ranks(weight)
        path: list[int] = []
        candidates: Sequence[int] = range(len(ranks))
        while candidates:
            path.append(max(candidates, key=ranks.__getitem__))
            candidates = self.successors[path[-1]]
        return max(ranks, default=0.0), path

    def bound(self, streams: int, weight: Weight = "seconds") -> float:
        """The speed-up over one stream that no schedule on `streams` streams exceeds.

        Torch ops and opaque callables share the program's thread, whatever the number of streams.
        A loop takes at least the longer of its body's critical path and its share of the work,
        as often as it iterates.
        """
        work = self.work(weight)
        return work / self._least(streams, weight) if work else 1.0

    def bound_list(self, streams: int, weight: Weight = "seconds") -> float:
        """The speed-up of greedy list scheduling in critical-path order, simulated, at no cost
        per task: what a good runtime may reach. A loop is simulated as one long iteration.
        """
        costs, before = self._flat(weight, 1.0)
        work = sum(costs)
        return work / _makespan(costs, before, streams) if work else 1.0

    def to_dot(self) -> str:
        """The graph in Graphviz's language: loops as clusters, hazards on the edges."""
        lines = ["digraph tasks {", '  node [shape=box, fontname="monospace"];']
        self._dot_into(lines, "t", "  ")
        return "\n".join([*lines, "}", ""])

    def _dot_into(self, lines: list[str], prefix: str, indent: str) -> None:
        for index, task in enumerate(self.tasks):
            label = f"{index} {task.name}" + (f"\n{task.line}" if task.line else "")
            if task.seconds:
                label += f"\n{task.seconds * 1e6:.1f} us"
            lines.append(f"{indent}{prefix}{index} [label={_quoted(label)}];")
            if index in self.bodies:
                lines.append(f"{indent}subgraph cluster_{prefix}{index} {{")
                lines.append(f"{indent}  label={_quoted(f'one iteration of {index} {task.name}')};")
                self.bodies[index]._dot_into(lines, f"{prefix}{index}_", indent + "  ")
                lines.append(f"{indent}}}")
        for a, b in self.edges:
            named = hazards_between(self.tasks[a].accesses, self.tasks[b].accesses)
            label = f" [label={_quoted(' '.join(sorted(named)))}]" if named else ""
            lines.append(f"{indent}{prefix}{a} -> {prefix}{b}{label};")

    def _costs(self, weight: Weight) -> list[float]:
        if weight == "seconds":
            costs = [t.seconds or sum(b.seconds for b in t.body) for t in self.tasks]
            if any(costs):
                return costs
        return [
            self.bodies[i].work("count") if i in self.bodies else 1.0
            for i in range(len(self.tasks))
        ]

    def _ranks(self, costs: Sequence[float]) -> list[float]:
        ranks = list(costs)
        for index in reversed(range(len(ranks))):
            ranks[index] += max((ranks[b] for b in self.successors[index]), default=0.0)
        return ranks

    def _least(self, streams: int, weight: Weight) -> float:
        """The shortest time that any schedule needs."""
        if streams < 1:
            raise ValueError(f"streams must be at least 1, not {streams}")
        costs = self._costs(weight)
        share = sum(costs) / streams
        host = sum(c for c, task in zip(costs, self.tasks, strict=True) if task.kind in HOST_KINDS)
        for index, body in self.bodies.items():
            costs[index] /= body.bound(streams, weight)
        return max(share, host, max(self._ranks(costs), default=0.0))

    def _flat(self, weight: Weight, scale: float) -> tuple[list[float], list[list[int]]]:
        """Costs and predecessors with each loop replaced by its body, as long as all iterations."""
        costs: list[float] = []
        before: list[list[int]] = []
        ends: list[int] = []  # the node that ends each task
        for index, cost in enumerate(self._costs(weight)):
            starts_after = [ends[a] for a in self.predecessors[index]]
            body = self.bodies.get(index)
            if body is None:
                costs.append(cost * scale)
                before.append(starts_after)
            else:
                inner_scale = scale * cost / body.work(weight)
                inner_costs, inner_before = body._flat(weight, inner_scale)
                entry = len(costs)
                inner = range(entry + 1, entry + 1 + len(inner_costs))
                costs += [0.0, *inner_costs, 0.0]
                before.append(starts_after)
                before += [[entry, *(entry + 1 + a for a in list_)] for list_ in inner_before]
                before.append([entry, *inner])
            ends.append(len(costs) - 1)
        return costs, before


def _reduced(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Predecessors per task without the edges that paths imply, ascending.

    A task's ancestors are one big integer, a bit each, so that following paths is one OR.
    """
    given: list[set[int]] = [set() for _ in range(count)]
    for before, after in edges:
        if not 0 <= before < after < count:
            raise ValueError(f"edge {before} -> {after} must point forward among {count} tasks")
        given[after].add(before)
    ancestors: list[int] = []
    kept: list[list[int]] = []
    for direct in given:
        reached = 0
        keep: list[int] = []
        for before in sorted(direct, reverse=True):
            if not reached >> before & 1:
                keep.append(before)
                reached |= ancestors[before] | 1 << before
        ancestors.append(reached)
        kept.append(keep[::-1])
    return kept


def _makespan(costs: Sequence[float], before: Sequence[Sequence[int]], streams: int) -> float:
    """Simulated end of a list schedule: a free stream takes the ready task of highest rank."""
    if streams < 1:
        raise ValueError(f"streams must be at least 1, not {streams}")
    after: list[list[int]] = [[] for _ in costs]
    for index, list_ in enumerate(before):
        for a in list_:
            after[a].append(index)
    ranks = list(costs)
    for index in reversed(range(len(ranks))):
        ranks[index] += max((ranks[b] for b in after[index]), default=0.0)
    waits_for = [len(list_) for list_ in before]
    ready = [(-ranks[i], i) for i, waits in enumerate(waits_for) if waits == 0]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < streams:
            _, index = heapq.heappop(ready)
            heapq.heappush(running, (now + costs[index], index))
        now, index = heapq.heappop(running)
        for b in after[index]:
            waits_for[b] -= 1
            if waits_for[b] == 0:
                heapq.heappush(ready, (-ranks[b], b))
    return now


def _quoted(text: str) -> str:
    """A string of Graphviz's language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
