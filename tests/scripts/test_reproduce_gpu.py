"""Compiling for a GPU, as far as possible without its packages: messages, and the programs asked for an order."""

from pathlib import Path

import jax
import pytest
from processes import check_fault, run_script
from reproduce import gpu_compile
from xla_programs import branches, vector

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import hook, topology

no_hook = pytest.mark.skipif(hook.why_unavailable() is not None, reason=str(hook.why_unavailable()))


@pytest.fixture
def module() -> HloModule:
    return hook.captured(jax.jit(branches).lower(vector()))


def test_missing_packages_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for plugin in ("jax_plugins.none", "nothing.none"):
        monkeypatch.setattr(topology, "PLUGIN", plugin)
        with pytest.raises(GraphrlError, match=r"^compiling for h200 needs .*: pip install \"\.\[gpu-compile\]\"$"):
            gpu_compile.compile_for_gpu(branches, vector())


@pytest.mark.skipif(not gpu_compile.missing(), reason="the packages are there")
def test_the_section_is_made_only_where_its_packages_are(tmp_path: Path) -> None:
    check_fault(run_script("reproduce_real_programs", tmp_path, "--sections", "gpu-orders"), "[gpu-compile]")


@no_hook
def test_a_rule_answers_while_it_is_asked(module: HloModule) -> None:
    data, listener = module.message.SerializeToString(), gpu_compile.Listener()
    assert listener.transform(data) is None
    memory = hook.captured(jax.jit(branches).lower(vector()), "memory")
    order = memory.order(memory.entry)
    with listener.applies(lambda module: {module.entry.name: order}):
        changed = listener.transform(data)
    assert changed is not None
    assert parse_module(changed).order(module.entry) == order != module.order(module.entry)
    with listener.applies(lambda module: None):
        assert listener.transform(data) is None
    assert listener.transform(data) is None


@no_hook
def test_what_a_rule_raises_comes_out_once_xla_is_done(module: HloModule) -> None:
    def rule(shown: HloModule) -> None:
        raise LookupError(shown.name)

    data, listener = module.message.SerializeToString(), gpu_compile.Listener()
    with pytest.raises(LookupError, match="jit_branches"), listener.applies(rule):
        assert listener.transform(data) is None
    with listener.applies(lambda module: None):
        listener.transform(data)
    with pytest.raises(GraphrlError, match="did not show"), listener.applies(lambda module: None):
        pass


def test_a_library_without_the_hook_is_one_line() -> None:
    with pytest.raises(GraphrlError, match=r"^libm\.so\.6 has no hook for schedules"):
        gpu_compile.register(Path("libm.so.6"), "test", lambda data: None)
