"""Every micro-step counts exactly once in every committed step, whoever dies or wakes when (log-rules 1-8)."""

from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events import Event
from gyre_engine.events.training import Claimed, CoreElected, MemberJoined, MemberReleased, Sealed, StepCommitted, StepOpened
from gyre_engine.training.ledger.fold import Ledger, LedgerBroken, apply, fold


def opened(step: int = 1, attempt: int = 1, micro_steps: tuple[str, ...] = ("a", "b", "c"), epoch: int = 1) -> StepOpened:
    return StepOpened(
        core_epoch=epoch, step=step, attempt=attempt, weights_hash="w", groups=("g",), scores=("s",), micro_steps=micro_steps,
        executions=2, divisor=2, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip


def joined(cell: str, epoch: int = 1, attempt: int = 1) -> MemberJoined:
    return MemberJoined(cell=cell, member_epoch=epoch, step=1, attempt=attempt, weights_hash="w")


def claimed(cell: str, count: int, epoch: int = 1, attempt: int = 1) -> Claimed:
    return Claimed(cell=cell, member_epoch=epoch, step=1, attempt=attempt, count=count)


def sealed(cell: str, *micro_steps: str, epoch: int = 1, attempt: int = 1) -> Sealed:
    return Sealed(
        cell=cell, member_epoch=epoch, step=1, attempt=attempt, micro_steps=micro_steps, buffer_hash="h", descriptor=b""
    )  # fmt: skip


def committed(order: tuple[tuple[str, int], ...], core_epoch: int = 1, attempt: int = 1) -> StepCommitted:
    return StepCommitted(
        core_epoch=core_epoch, step=1, attempt=attempt, merge_order=order, weights_hash="v", executions=2, grad_norm=0.0,
        loss=0.0, reward_mean=0.0,
    )  # fmt: skip


CORE = CoreElected(core_epoch=1, holder="p", cell="c0")


def test_claims_are_served_in_log_order_from_the_head() -> None:
    ledger = fold([CORE, opened(), joined("c0"), joined("c1"), claimed("c1", 1), claimed("c0", 2), claimed("c1", 5)])
    assert ledger.open is not None
    assert {c: m.assigned for c, m in ledger.open.members.items()} == {"c0": ("b", "c"), "c1": ("a",)}


def test_a_paused_member_that_wakes_after_its_release_counts_nothing() -> None:
    history: list[Event] = [CORE, opened(), joined("c0"), joined("c1"), claimed("c1", 2)]
    history += [MemberReleased(core_epoch=1, cell="c1", member_epoch=1, reason="lease"), claimed("c0", 3)]
    ledger = fold([*history, sealed("c1", "a", "b"), claimed("c1", 1), joined("c1", epoch=1), sealed("c0", "a", "b", "c")])
    assert ledger.open is not None
    assert ledger.open.merge_order == (("c0", 1),)
    assert ledger.open.complete
    assert apply(ledger, joined("c1", epoch=2)).member("c1", 2) is not None


def test_a_second_life_of_a_member_frees_what_the_first_had_claimed() -> None:
    ledger = fold([CORE, opened(), joined("c1"), claimed("c1", 2), joined("c1", epoch=2), sealed("c1", "a", "b")])
    assert ledger.open is not None
    assert (ledger.open.free, ledger.open.merge_order) == (("a", "b", "c"), ())


def test_a_second_life_does_not_unseal_what_the_core_may_be_merging() -> None:
    history: list[Event] = [CORE, opened(), joined("c1"), claimed("c1", 2), sealed("c1", "a", "b"), joined("c1", epoch=2)]
    ledger = fold(history)
    assert ledger.open is not None
    assert (ledger.open.free, ledger.open.merge_order) == (("c",), (("c1", 1),))
    released = apply(ledger, MemberReleased(core_epoch=1, cell="c1", member_epoch=1, reason="its buffer is gone"))
    assert released.open is not None
    assert released.open.free == ("a", "b", "c")


def test_a_seal_before_the_work_is_done_frees_the_rest() -> None:
    ledger = fold([CORE, opened(), joined("c1"), claimed("c1", 3), sealed("c1", "a")])
    assert ledger.open is not None
    assert ledger.open.free == ("b", "c")


def test_a_seal_of_other_work_than_was_assigned_voids_the_member() -> None:
    ledger = fold([CORE, opened(), joined("c1"), claimed("c1", 2), sealed("c1", "b", "a")])
    assert ledger.open is not None
    assert (ledger.open.free, ledger.open.members) == (("a", "b", "c"), {})


def test_a_new_core_voids_the_open_attempt_and_the_old_one_commits_nothing() -> None:
    history: list[Event] = [CORE, opened(), joined("c0"), claimed("c0", 3), sealed("c0", "a", "b", "c")]
    history += [CoreElected(core_epoch=2, holder="q", cell="c0"), committed((("c0", 1),))]
    ledger = fold(history)
    assert (ledger.step, ledger.open, ledger.core_holder) == (0, None, "q")
    again = fold([opened(attempt=2, epoch=2), joined("c0", 2, 2), claimed("c0", 9, 2, 2)], ledger)
    final = fold([sealed("c0", "a", "b", "c", epoch=2, attempt=2), committed((("c0", 2),), 2, 2)], again)
    assert final.step == 1


def test_the_loser_of_an_election_is_not_the_core() -> None:
    ledger = fold([CORE, CoreElected(core_epoch=1, holder="other", cell="c1")])
    assert ledger.core_holder == "p"


def test_a_commit_without_all_micro_steps_stops_the_process() -> None:
    ledger = fold([CORE, opened(), joined("c0"), claimed("c0", 2), sealed("c0", "a", "b")])
    try:
        apply(ledger, committed((("c0", 1),)))
    except LedgerBroken as error:
        assert "step 1 attempt 1" in str(error)
    else:
        raise AssertionError("accepted")


CELLS = st.sampled_from(["c0", "c1", "c2"])
EPOCHS = st.integers(1, 3)
MICRO = tuple("abcdef")


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[str, str, int, int]]:
    kinds = st.sampled_from(["join", "claim", "seal", "seal-part", "release"])
    return draw(st.lists(st.tuples(kinds, CELLS, EPOCHS, st.integers(0, 4)), max_size=60))


def event_of(ledger: Ledger, move: tuple[str, str, int, int]) -> Event:
    kind, cell, epoch, count = move
    member = ledger.member(cell, epoch)
    assigned = member.assigned if member else MICRO[:count]
    match kind:
        case "join":
            return joined(cell, epoch)
        case "claim":
            return claimed(cell, count, epoch)
        case "seal":
            return sealed(cell, *assigned, epoch=epoch)
        case "seal-part":
            return sealed(cell, *assigned[:count], epoch=epoch)
        case _:
            return MemberReleased(core_epoch=1, cell=cell, member_epoch=epoch, reason="lease")


@given(moves())
def test_every_micro_step_counts_once_in_every_committed_step(history: list[tuple[str, str, int, int]]) -> None:
    ledger = fold([CORE, opened(micro_steps=MICRO)])
    for move in history:
        ledger = apply(ledger, event_of(ledger, move))
        assert ledger.open is not None
        held = [m for member in ledger.open.members.values() for m in member.assigned]
        assert sorted([*held, *ledger.open.free]) == sorted(MICRO)
    if ledger.open is not None and ledger.open.complete:
        merged = [m for c, e in ledger.open.merge_order for m in (ledger.member(c, e) or ledger.open.members[c]).assigned]
        assert sorted(merged) == sorted(MICRO)
        assert apply(ledger, committed(ledger.open.merge_order)).step == 1


def test_what_stands_on_the_log_twice_counts_once() -> None:
    """A repeated opening or commit of the ruling core is no contradiction, whenever it comes."""
    first: list[Event] = [CORE, opened(), opened(), joined("c0"), joined("c0"), claimed("c0", 3), opened()]
    done = [sealed("c0", "a", "b", "c"), sealed("c0", "a", "b", "c"), committed((("c0", 1),)), committed((("c0", 1),)), opened()]
    ledger = fold([*first, *done])
    assert (ledger.step, ledger.open, ledger.attempts) == (1, None, 0)
    assert fold([opened(step=2), committed((("c0", 1),)), opened()], ledger).open == fold([opened(step=2)], ledger).open
