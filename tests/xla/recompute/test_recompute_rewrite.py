"""Modules with clones: what XLA gets, and how clones are kept without names."""

import pytest
from recompute_programs import HAND

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla.callback import check_sequence
from graphrl.xla.recompute.candidates import Clone, clone_names, named, numbered
from graphrl.xla.recompute.rewrite import rewritten

CLONES = (Clone("wide.again0", "wide", ("view.again1",)), Clone("view.again1", "view", ("late",)))


@pytest.fixture
def module() -> HloModule:
    return parse_module(HAND)


def test_clones_run_right_before_their_readers(module: HloModule) -> None:
    changed = rewritten(module, CLONES)
    order = changed.order(changed.entry)
    assert order[order.index("late") - 2 :][:3] == ("wide.again0", "view.again1", "late")
    assert tuple(name for name in order if ".again" not in name) == module.order(module.entry)
    check_sequence(changed, order)


def test_only_the_readers_that_are_named_change(module: HloModule) -> None:
    changed = rewritten(module, CLONES)
    by_name = changed.entry.by_name
    assert by_name["late"].operands == ("view.again1", "middle")
    assert by_name["view.again1"].operands == ("wide.again0",)
    assert by_name["wide.again0"].operands == module.entry.by_name["wide"].operands
    for name in module.entry.by_name.keys() - {"late"}:
        assert by_name[name].operands == module.entry.by_name[name].operands
    assert "wide.again0" not in module.entry.by_name


def test_every_fusion_has_a_body_of_its_own(module: HloModule) -> None:
    changed = rewritten(module, CLONES)
    bodies = [i.called[0] for i in changed.entry.instructions if i.opcode == "fusion"]
    assert len(set(bodies)) == len(bodies) == 4
    names = [i.name for c in changed.computations.values() for i in c.instructions]
    ids = [i.id for c in changed.message.computations for i in c.instructions]
    assert len(set(names)) == len(names)
    assert len(set(ids)) == len(ids)


def test_xla_takes_the_module(module: HloModule) -> None:
    from jaxlib import _hlo

    changed = rewritten(module, CLONES)
    live = _hlo.HloModule.from_serialized_hlo_module_proto(changed.message.SerializeToString())
    live.schedule().verify()
    assert parse_module(live).order(parse_module(live).entry) == changed.order(changed.entry)


def test_a_clone_of_a_clones_input(module: HloModule) -> None:
    clones = (Clone("late.again0", "late", ("result",)), Clone("middle.again1", "middle", ("late.again0",)))
    changed = rewritten(module, clones)
    assert changed.entry.by_name["late.again0"].operands == ("view", "middle.again1")
    sequence = changed.order(changed.entry)
    assert sequence[-4:] == ("late", "middle.again1", "late.again0", "result")


@pytest.mark.parametrize(
    ("clone", "text"),
    [
        (Clone("a", "missing", ("late",)), "clone 'a' of 'missing': no such instruction"),
        (Clone("late", "wide", ("view",)), "clone 'late' of 'wide': no such instruction"),
        (Clone("a", "wide", ("late",)), "'late' does not read 'wide'"),
        (Clone("a", "wide", ("nobody",)), "'nobody' does not read 'wide'"),
    ],
)
def test_clones_that_do_not_fit_are_refused(module: HloModule, clone: Clone, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        rewritten(module, [clone])


def test_clones_come_back_from_numbers(module: HloModule) -> None:
    pairs = numbered(module, CLONES)
    places = {i.name: k for k, i in enumerate(module.entry.instructions)}
    n = len(places)
    assert pairs == ((places["wide"], (n + 1,)), (places["view"], (places["late"],)))
    assert named(module, pairs) == CLONES


@pytest.mark.parametrize("found", [((99, (1,)),), ((-1, (1,)),), ((1, (99,)),), ((1, (-1,)),)])
def test_numbers_of_another_module_are_refused(
    module: HloModule, found: tuple[tuple[int, tuple[int, ...]], ...]
) -> None:
    with pytest.raises(PlanError, match="a clone"):
        named(module, found)


def test_names_are_new(module: HloModule) -> None:
    changed = rewritten(module, CLONES)
    (name,) = clone_names(changed, ["wide"])
    assert name not in changed.entry.by_name
