"""Explanations of memory: planted causes, their remedies by XLA's figures, and the forms of programs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hlo_programs import module_of
from reproduce.checkpoint import explain as section
from reproduce.checkpoint.explain import NEAR, PLANTED

import graphrl
from graphrl.errors import GraphError, GraphrlError, ProblemError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import hook
from graphrl.xla.callback import Answer, rescheduled
from graphrl.xla.donation import preserve_donation
from graphrl.xla.explain import Program, explain_program
from graphrl.xla.explain.memory import CAUSES, COLLECTIVE, COPY, DONATION, HOLES, KEPT, PADDING, Memory
from graphrl.xla.explain.remedies import best_order
from graphrl.xla.explain.report import ARGUMENTS, RESULTS, UNLISTED, Explanation, line_of

MIB = 2**20
SLOW = "residuals of a scan"  # its remedy searches for a plan
# A CPU has no other memory to offload to.
ON_CPU = [pytest.param(n, marks=[pytest.mark.slow] * (n == SLOW)) for n in PLANTED if "offload" not in n]


def total(compiled: Any) -> int:
    memory = compiled.memory_analysis()
    outside = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + outside + memory.temp_size_in_bytes)


def reordered(lowered: jax.stages.Lowered) -> Any:
    """The program in the best order that graphrl finds, compiled."""
    donation = preserve_donation(hook.captured(lowered))
    orders = best_order(Memory(donation.module), section.SECONDS).schedule
    return hook.compile_by(lowered, lambda _: Answer(rescheduled(donation.module, orders), aliases=donation.aliases))


@pytest.fixture(scope="module")
def step() -> Any:
    """A compiled gradient step of three layers."""

    def update(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return jnp.mean(h**2)

        return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]

    shape = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    with hook.with_source_lines():  # else it may have the lines of an earlier version of this file
        return jax.jit(update).lower([shape] * 3, jax.ShapeDtypeStruct((2048, 128), jnp.float32)).compile()


@pytest.fixture(scope="module")
def explanation(step: Any) -> Explanation:
    return graphrl.explain(step, seconds=0.2)


@pytest.mark.parametrize("name", ON_CPU)
def test_a_planted_cause_is_named_first_and_its_remedy_saves_what_is_predicted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(section, "SECONDS", 1.0)
    planted = PLANTED[name].build(**PLANTED[name].small)
    lowered = jax.jit(planted.step).lower(*planted.args)
    compiled = lowered.compile()
    explained = graphrl.explain(compiled, seconds=1.0)
    assert explained.causes[0].key == planted.cause
    assert explained.total_bytes == total(compiled)
    remedy = next(remedy for remedy in explained.remedies if remedy.kind == planted.remedy)
    if planted.mend is None:
        after = reordered(lowered)
    else:
        mended = planted.mend(remedy)
        after = jax.jit(mended.step, **mended.options).lower(*mended.args).compile()
    assert remedy.saves == pytest.approx(total(compiled) - total(after), rel=NEAR)


def test_the_parts_are_the_whole(step: Any, explanation: Explanation) -> None:
    assert explanation.is_measured
    assert explanation.temp_bytes == step.memory_analysis().temp_size_in_bytes
    assert sum(cause.bytes for cause in explanation.causes) == explanation.total_bytes
    assert sum(place.bytes for place in explanation.places) == explanation.live_bytes
    live = np.sum(list(explanation.timeline.values()), axis=0)
    assert live.max() == live[explanation.peak_time] == explanation.live_bytes <= explanation.temp_bytes
    assert explanation.bound_bytes <= explanation.best_bytes <= explanation.predicted_bytes
    assert [r.saves for r in explanation.remedies] == sorted((r.saves for r in explanation.remedies), reverse=True)


def test_what_the_backward_pass_needs_is_kept_and_has_its_line(explanation: Explanation) -> None:
    kept = next(place for place in explanation.places if place.cause == KEPT)
    assert explanation.causes[0].key == KEPT
    assert Path(kept.source.file).name == Path(__file__).name
    assert "h = jnp.tanh(h @ w)" in Path(__file__).read_text().splitlines()[kept.source.line - 1]
    assert kept.shape == "f32[2048,128]"
    assert explanation.backward_time is not None
    assert abs(explanation.backward_time - explanation.peak_time) < len(explanation.timeline[KEPT]) / 4
    assert "kept for the backward pass" in str(explanation)
    assert line_of(kept.source) in str(explanation)


def test_all_forms_of_a_program_have_one_explanation(step: Any, explanation: Explanation, tmp_path: Path) -> None:
    stem = tmp_path / "module_0003.jit_update.cpu_after_optimizations"
    Path(f"{stem}.txt").write_text(step.as_text())
    (tmp_path / "module_0001.jit_small.cpu_after_optimizations.txt").write_text("HloModule small")
    other = graphrl.explain(tmp_path, seconds=0.2)
    assert not other.is_measured
    Path(f"{stem}-buffer-assignment.txt").write_text(
        "BufferAssignment:\nallocation 0: size 4096, maybe-live-out:\n"
        f"allocation 9: size {explanation.temp_bytes}, preallocated-temp:\n value: <6 x @0> (size=1,offset=4)\n"
    )
    dumped = graphrl.explain(str(tmp_path), seconds=0.2)
    assert dumped.is_measured
    for each in (other, dumped, graphrl.explain(step.as_text(), seconds=0.2)):
        assert each.causes == explanation.causes
        assert each.places == explanation.places


def test_a_function_is_compiled_with_its_own_options() -> None:
    def update(state: jax.Array, x: jax.Array) -> jax.Array:
        return state + jnp.tanh(x)

    args = jnp.zeros((256, 256)), jnp.ones((256, 256))
    plain = graphrl.explain(update, *args, seconds=0)
    donated = graphrl.explain(jax.jit(update, donate_argnums=0), *args, seconds=0)
    assert plain.total_bytes - donated.total_bytes == 256 * 1024
    assert plain.remedies[0].kind == "donate"
    assert "donate_argnames=('state',)" in plain.remedies[0].action
    assert plain.causes[0].key == DONATION
    assert donated.remedies == ()


TILED = """HloModule padded, is_scheduled=true
ENTRY e {
  x = f32[1024]{0:T(1024)} parameter(0)
  y = f32[1024,2]{1,0:T(8,128)} broadcast(x), dimensions={0}
  z = f32[1024,2]{1,0:T(8,128)} exponential(y)
  c = f32[] constant(0)
  ROOT r = f32[2]{0:T(256)} reduce(z, c), dimensions={0}, to_apply=add
}
"""
GATHERED = """HloModule gathered, is_scheduled=true, replica_count=4
ENTRY e {
  w = f32[256,1024]{1,0} parameter(0)
  x = f32[64,1024]{1,0} parameter(1)
  g = f32[1024,1024]{1,0} all-gather(w), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT y = f32[64,1024]{1,0} dot(x, g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
STARTED = """HloModule started, is_scheduled=true, replica_count=4
ENTRY e {
  w = f32[256,1024]{1,0} parameter(0)
  x = f32[64,1024]{1,0} parameter(1)
  v = f32[256,1024]{1,0} exponential(w)
  s = (f32[256,1024]{1,0}, f32[1024,1024]{1,0}) all-gather-start(v), replica_groups={{0,1,2,3}}, dimensions={0}
  h = f32[64,1024]{1,0} exponential(x)
  g = f32[1024,1024]{1,0} all-gather-done(s)
  ROOT y = f32[64,1024]{1,0} dot(h, g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
COPIED = """HloModule copied, is_scheduled=true
ENTRY e {
  x = f32[512,512]{1,0} parameter(0)
  c = f32[512,512]{1,0} copy(x)
  i = s32[] constant(3)
  p = f32[1,512]{1,0} constant({...})
  ROOT u = f32[512]{0} custom-call(c, i), custom_call_target="f"
}
"""
ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
"""


def _with_helpers(text: str) -> HloModule:
    head, entry = text.split("\n", 1)
    return module_of(f"{head}\n{ADD}\n{entry}")


@pytest.mark.parametrize(
    ("text", "cause", "size", "live"),
    [
        (TILED, PADDING, 1024 * (128 - 2) * 4, 1024 * 128 * 4),  # two of 128 columns of a tile are data
        (GATHERED, COLLECTIVE, 4 * MIB, 4 * MIB),
        (STARTED, COLLECTIVE, 4 * MIB, 5 * MIB + MIB // 4),  # its operand until it is done, and what runs meanwhile
        (COPIED, COPY, MIB, MIB),
    ],
)
def test_causes_of_single_instructions(text: str, cause: str, size: int, live: int) -> None:
    explained = explain_program(Program(_with_helpers(text)), seconds=0)
    assert (explained.causes[0].key, explained.causes[0].bytes) == (cause, size)
    assert sum(each.bytes for each in explained.causes) == explained.total_bytes
    assert explained.live_bytes == live


def test_memory_of_the_host_is_not_counted(step: Any, explanation: Explanation) -> None:
    module = parse_module(step)
    kept = next(array for array in Memory(module).at(explanation.peak_time) if array.cause == KEPT)
    shape = dataclasses.replace(kept.shape, memory_space=5)

    def on_host(i: Any) -> Any:
        return dataclasses.replace(i, shape=shape) if i.name == kept.writer.name else i

    entry = dataclasses.replace(module.entry, by_name={n: on_host(i) for n, i in module.entry.by_name.items()})
    computations = {**module.computations, entry.name: entry}
    moved = Memory(dataclasses.replace(module, entry=entry, computations=computations))
    assert kept.writer.name not in {array.writer.name for array in moved.arrays}
    assert moved.live.max() <= explanation.live_bytes


GPU = """RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4112383344 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.50GiB
              constant allocation:         0B
        maybe_live_out allocation:  256.00MiB
     preallocated temp allocation:    3.50GiB
  preallocated temp fragmentation:   512.00MiB (14.29%)
                 total allocation:    5.25GiB
Peak buffers:
\tBuffer 1:
\t\tSize: 2.00GiB
\t\tOperator: op_name="jit(step)/jvp(Model)/head/dot_general" source_file="/home/me/model.py" source_line=97
\t\tXLA Label: fusion
\t\tShape: f32[131072,4096]
\t\t==========================

\tBuffer 2:
\t\tSize: 512.00MiB
\t\tOperator: op_name="jit(step)/all_gather" source_file="/home/me/model.py" source_line=12
\t\tXLA Label: all-gather
\t\tShape: f32[32768,4096]
\t\t==========================

\tBuffer 3:
\t\tSize: 1.50GiB
\t\tEntry Parameter Subshape: f32[98304,4096]
\t\t==========================
"""
TPU = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in hbm. Used 3.00G of 2.00G hbm.
Program hbm requirement 3.00G:
    HLO temp          3.00G (95.0% utilization: Unpadded (2.85G) Padded (3.00G), 0.0% fragmentation (1.00M))

  Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name="jit(step)/transpose(jvp(Model))/mul" source_file="/home/me/model.py" source_line=31
     Shape: f32[32,4096,4096]{1,2,0:T(8,128)}
     Unpadded size: 1.50G
     Extra memory due to padding: 512.00M (1.3x expansion)
     XLA label: fusion.12 = fusion(custom-call.2), kind=kOutput, calls=fused_computation.9
     Allocation type: HLO temp
     ==========================
"""


def test_a_message_of_a_gpu_is_explained(tmp_path: Path) -> None:
    explained = graphrl.explain(GPU)
    sizes = {cause.key: cause.bytes for cause in explained.causes}
    assert sizes == {
        KEPT: 2048 * MIB,
        COLLECTIVE: 512 * MIB,
        HOLES: 512 * MIB,
        ARGUMENTS: 1536 * MIB,
        RESULTS: 256 * MIB,
        UNLISTED: 512 * MIB,
    }
    assert explained.places[0].source.line == 97
    assert "model.py:97" in str(explained)
    with pytest.raises(GraphrlError, match="module for a picture"):
        explained.plot(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_a_message_of_a_tpu_has_padding_and_the_limit(step: Any, tmp_path: Path) -> None:
    explained = graphrl.explain(RuntimeError(TPU))
    sizes = {cause.key: cause.bytes for cause in explained.causes}
    assert (sizes[PADDING], sizes[HOLES], explained.limit_bytes) == (512 * MIB, MIB, 2048 * MIB)
    assert explained.total_bytes == 3072 * MIB
    assert "1.00 GiB too many" in str(explained)
    file = tmp_path / "oom.txt"
    file.write_text(TPU)
    both = graphrl.explain(step, message=file, seconds=0)
    assert both.limit_bytes == 2048 * MIB
    assert both.remedies


def _unscheduled() -> Any:
    return graphrl.explain("HloModule m\nENTRY e { ROOT x = f32[2] parameter(0) }")


@pytest.mark.parametrize(
    ("call", "error", "fault"),
    [
        (_unscheduled, GraphError, "no schedule"),
        (lambda: graphrl.explain("HloModule", jnp.ones(2)), ProblemError, "compiled already"),
        (lambda: graphrl.explain(jnp.sin, jnp.ones(2), seconds=-1), ProblemError, "seconds is -1"),
        (lambda: graphrl.explain(jnp.sin, jnp.ones(2), message="no"), ProblemError, "RESOURCE_EXHAUSTED"),
        (lambda: graphrl.explain("RESOURCE_EXHAUSTED: Out of memory\n"), GraphError, "lists no arrays"),
        (lambda: graphrl.explain(ValueError("no")), GraphError, "ValueError: must be HLO text"),
        (lambda: graphrl.explain(jnp.sin, jnp.ones(2), seconds="5"), ProblemError, "seconds is '5'"),  # type: ignore[arg-type]
        (lambda: graphrl.explain(jax.jit(jnp.sin).lower(jnp.ones(2)).as_text()), GraphError, "it is StableHLO"),
        (lambda: graphrl.explain(jnp.sin, jnp.ones(2), message=Path("absent")), GraphrlError, "cannot read absent"),
        (lambda: graphrl.explain(jnp.sin, jnp.ones(2), chip="abacus"), GraphrlError, "must be one of"),
    ],
)
def test_faults_are_one_line(call: Callable[[], Any], error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_a_step_of_equinox_is_explained_lowered_and_compiled() -> None:
    model, x = eqx.nn.Linear(8, 8, key=jax.random.key(0)), jnp.ones((32, 8))

    def gradient(x: jax.Array, model: eqx.nn.Linear) -> Any:
        return eqx.filter_grad(lambda model: jnp.square(jax.vmap(model)(x)).mean())(model)

    step: Any = eqx.filter_jit(gradient, donate="all-except-first")
    lowered = step.lower(x, model)
    texts = [str(graphrl.explain(*each, seconds=0)) for each in ((step, x, model), (lowered,), (lowered.compile(),))]
    assert texts[0].startswith("jit_gradient needs ")
    assert texts[0] == texts[1] == texts[2]
    assert "donated" not in texts[0]
    with pytest.raises(ProblemError, match=r"the result of jax\.jit$"):
        graphrl.explain(step, x, model, chip="h200")


def test_a_step_of_nnx_without_jit_keeps_what_it_writes() -> None:
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))

    def step(model: nnx.Linear, x: jax.Array) -> jax.Array:
        model.kernel[...] = model.kernel[...] + x.T @ x
        return model(x)

    plain, jitted = (graphrl.explain(fn, model, jnp.ones((8, 64)), seconds=0) for fn in (step, nnx.jit(step)))
    assert plain.result_bytes == jitted.result_bytes > 4 * 64 * 64  # the new weights, not the result alone


def test_equinox_donates_by_another_option() -> None:
    model = eqx.nn.Linear(64, 64, key=jax.random.key(0))

    def update(x: jax.Array, model: eqx.nn.Linear) -> Any:
        return jax.tree.map(lambda leaf: leaf - x.sum() if eqx.is_array(leaf) else leaf, model)

    (remedy,) = graphrl.explain(eqx.filter_jit(update), jnp.ones(4), model, seconds=0).remedies
    assert remedy.kind == "donate"
    assert remedy.action.endswith('donate="all" or "all-except-first" in eqx.filter_jit')


def test_a_folder_without_modules_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="xla_dump_to"):
        graphrl.explain(tmp_path)


def test_every_cause_has_words() -> None:
    assert all(CAUSES.values())
