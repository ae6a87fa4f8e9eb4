"""Plans outlive their process; broken ones are harmless; and jax's own cache on disk stays separate."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from processes import environment
from xla_programs import branches, plans, temporaries, vector

import graphrl
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla import hook
from graphrl.xla.planning import planner
from graphrl.xla.planning.cache import VERSION, Decision, DecisionCache, jaxlib_version, places_of

__all__ = ["plans"]

# Prints one process's view of the program of `xla_programs.py`: searches, compilations, bytes of graphrl's and of
# jax's executable, and for each report if it was from disk. For three steps in place: if the state is where it was,
# the number of programs that XLA compiled, and a result.
SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
import jax
jax.config.update("jax_compilation_cache_dir", {cache!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, _, **more: compiled.append(more["fun_name"]) if "backend_compile" in name else None)
import graphrl
from graphrl.xla.planning import planner
from test_xla_donation import X, looped, state_of
from xla_programs import branches, temporaries, vector
searches, search = [], planner.decide
planner.decide = lambda *args: searches.append(args) or search(*args)
fn, x = graphrl.jit(branches, seconds=0.2), vector()
compiled.clear()
fn(x)
counts = len(searches), len(compiled)
ours = temporaries(fn._call.lower(x).compile())
seen = [*counts, ours, temporaries(jax.jit(branches).lower(x).compile()), [report.from_cache for report in fn.reports]]
fn, state = graphrl.jit(looped, seconds=0.2, donate_argnums=0), state_of(looped)
place = state.unsafe_buffer_pointer()
for _ in range(3):
    state, _ = fn(state, X)
print(json.dumps([seen, [place == state.unsafe_buffer_pointer(), len(fn.reports), state.sum().item()]]))
"""


def process(folder: Path, cache: str | None) -> list[Any]:
    """The script's output."""
    command = [sys.executable, "-c", SCRIPT.format(tests=str(Path(__file__).resolve().parent), cache=cache)]
    own = environment(XDG_CACHE_HOME=str(folder), JAX_PLATFORMS="cpu")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_the_next_process_finds_the_plan_and_jax_s_cache_mixes_nothing_up(tmp_path: Path) -> None:
    """With donated arguments too: a loaded executable serializes without its code (jaxlib 0.10.2)."""
    cache = str(tmp_path / "jax")
    (searches, _, ours, theirs, cached), (in_place, compiled, total) = process(tmp_path, cache)
    assert (searches, cached) == (1, [False])
    assert ours < 0.3 * theirs
    assert (in_place, compiled) == (True, 1)
    # With jax's cache XLA does not run at all; without it, one compilation, in the order on disk.
    assert process(tmp_path, cache) == [[0, 1, ours, theirs, []], [True, 0, total]]
    assert process(tmp_path, None) == [[0, 1, ours, theirs, [True]], [True, 1, total]]


def search_count(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    earlier: list[Any] = []
    search = planner.decide

    def decide(lowered: Any, unplanned: Any, settings: Any, decision: Any) -> Any:
        earlier.append(decision)
        return search(lowered, unplanned, settings, decision)

    monkeypatch.setattr(planner, "decide", decide)
    monkeypatch.setattr(planner, "_SHARED", DecisionCache(on_disk=True))
    return earlier


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops plans in memory, as in a new process."""
    monkeypatch.setattr(planner, "_SHARED", DecisionCache(on_disk=True))


@pytest.fixture(scope="module")
def program() -> HloModule:
    return hook.captured(jax.jit(branches).lower(vector()))


def decision(program: HloModule) -> Decision:
    """XLA's own order, as a decision."""
    return Decision(
        fingerprint=program.fingerprint,
        jaxlib=jaxlib_version(),
        method="auto",
        seed=0,
        seconds=10.0,
        orders=places_of(program),
        found_by="given",
        reason="",
        xla_bytes=20,
        memory_bytes=15,
        memory_measured=False,
        graphrl_bytes=10,
        argument_bytes=8,
        result_bytes=4,
        undonated_bytes=0,
        bound=5.0,
        search_seconds=1.5,
        evaluations=3,
    )


def test_decision_is_found_as_it_was_kept(program: HloModule, plans: Path) -> None:
    kept = decision(program)
    DecisionCache(on_disk=True).store(kept)
    assert [file.name for file in plans.iterdir()] == [f"{program.fingerprint}.json"]
    decisions = DecisionCache(on_disk=True)
    assert decisions.find(program) == (kept, True)
    assert decisions.find(program) == (kept, False)
    assert kept.program(program).schedule == program.schedule
    own = dataclasses.replace(kept, orders=None, found_by="", reason="no better one was found")
    DecisionCache(on_disk=True).store(own)
    assert DecisionCache(on_disk=True).find(program) == (own, True)
    assert own.answer(program) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: text.replace(f'"version": {VERSION}', f'"version": {VERSION - 1}'),
        lambda text: text.replace('"orders": [', '"orders": [[0], '),
        lambda text: text.replace('"orders": [', '"orders": [[-1], '),
        lambda text: text.replace('"seed": 0', '"seed": "0"'),
        lambda text: text.replace('"fingerprint": "', '"fingerprint": "0'),
    ],
)
def test_broken_files_count_as_none(spoil: Any, program: HloModule, plans: Path) -> None:
    DecisionCache(on_disk=True).store(decision(program))
    (file,) = plans.iterdir()
    text = file.read_text()
    assert spoil(text) != text
    file.write_text(spoil(text))
    assert DecisionCache(on_disk=True).find(program) == (None, False)


def test_broken_file_is_rewritten(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = search_count(monkeypatch)
    for _ in range(2):
        forget(monkeypatch)
        graphrl.compile(branches, vector(), seconds=0.2)
        (file,) = plans.iterdir()
        text = file.read_text()
        file.write_text(text[:100])
    assert searches == [None, None]
    file.write_text(text)
    forget(monkeypatch)
    assert graphrl.compile(branches, vector(), seconds=0.2).report().from_cache


def test_more_seconds_another_seed_or_method_search_again_from_the_known_plan(
    plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = search_count(monkeypatch)
    requests: tuple[dict[str, Any], ...] = ({}, {"seconds": 0.1}, {"seconds": 0.3}, {"seed": 1}, {"method": "given"})
    for options in requests:
        forget(monkeypatch)
        executable = graphrl.compile(branches, vector(), **({"seconds": 0.2} | options))
        assert temporaries(executable) < 300_000  # "given" alone gains nothing, but the file never gets worse
    assert [decision is None for decision in searches] == [True, False, False, False]


def test_without_the_cache_nothing_is_read_or_written(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = search_count(monkeypatch)
    for _ in range(2):
        assert graphrl.compile(branches, vector(), seconds=0.2, cache=False).plan is not None
    assert len(searches) == 2
    assert not plans.exists()
    fn = graphrl.jit(branches, seconds=0.2, cache=False)
    fn(vector())
    assert fn.reports[0].planned


def test_folder_that_cannot_be_written_is_a_warning(plans: Path) -> None:
    plans.parent.parent.mkdir(exist_ok=True)
    plans.parent.write_text("a file in the way")
    with pytest.warns(UserWarning, match="graphrl: the plan cannot be stored for the next process: "):
        executable = graphrl.compile(branches, vector(), seconds=0.2)
    assert executable.plan is not None


def with_xla_s_order(plans: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> Any:
    """A program compiled from a plan on disk that combines XLA's own order with a search's promise.

    `more` maps fields of the plan to the fields whose values they get.
    """
    forget(monkeypatch)
    graphrl.compile(branches, vector(), seconds=0.2)
    (file,) = plans.iterdir()
    data = json.loads(file.read_text())
    own = decision(hook.captured(jax.jit(branches).lower(vector())))
    changed = {"orders": own.orders} | {name: data[other] for name, other in more.items()}
    file.write_text(json.dumps(data | changed))
    forget(monkeypatch)
    return graphrl.compile(branches, vector(), seconds=0.2)


def test_order_that_needs_more_than_predicted_is_withdrawn(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = with_xla_s_order(plans, monkeypatch)
    assert executable.plan is None
    assert executable.report().found_by == "XLA's memory scheduler"  # it is better than its default one here
    assert temporaries(executable) < temporaries(jax.jit(branches).lower(vector()).compile())


def test_order_that_needs_more_than_xla_s_default_is_withdrawn(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = with_xla_s_order(plans, monkeypatch, memory_bytes="xla_bytes")
    assert executable.plan is None
    assert temporaries(executable) == temporaries(jax.jit(branches).lower(vector()).compile())
    assert "more than predicted" in executable.report().reason
