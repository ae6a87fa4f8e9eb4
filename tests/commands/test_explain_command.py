"""`graphrl explain`: the table, JSON, the picture and faults in one line."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from command_line import check_failure

from graphrl.cli import main

MESSAGE = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 8.00M of 2.00M hbm.
  1. Size: 4.00M
     Operator: op_name="jit(f)/jvp(Model)/mul" source_file="/home/me/model.py" source_line=31
     Shape: f32[1024,1024]{1,0}
     Unpadded size: 4.00M
     XLA label: fusion.12 = fusion(custom-call.2), kind=kOutput, calls=fused_computation.9
     ==========================
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a compiled gradient's text."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((1024, 64), jnp.float32)
    path = tmp_path_factory.mktemp("explain") / "step.hlo"
    path.write_text(str(jax.jit(jax.grad(loss)).lower(*args).compile().as_text()))
    return str(path)


def test_a_module_is_explained_as_table_json_and_picture(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "memory.png"
    arguments = ["explain", module, "--seconds", "0.2"]
    assert main([*arguments, "--limit", "1MiB", "--plot", str(picture)]) == 0
    table = capsys.readouterr().out
    assert "kept for the backward pass" in table
    assert "test_explain_command.py" in table
    assert "the device has 1.00 MiB" in table
    assert f"written: {picture}" in table
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(cause["bytes"] for cause in data["causes"]) == data["total_bytes"]
    assert {"kind", "action", "saves", "source", "budget"} == data["remedies"][0].keys()
    assert data["written"] == []


def test_a_message_is_explained_alone_and_with_its_module(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "oom.txt"
    message.write_text(MESSAGE)
    assert main(["explain", str(message)]) == 0
    assert "6.00 MiB too many" in capsys.readouterr().out
    assert main(["explain", module, "--seconds", "0", "--message", str(message)]) == 0
    assert "the device has 2.00 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["no-such-file.hlo"], 1, "No such file"),
        (["zoo:vgg16/training/b8/hlo"], 2, "graphrl checkpoint zoo:vgg16"),
        (["{module}", "--plot", "memory.doc"], 1, ".png"),
        (["{module}", "--message", "{module}"], 2, "RESOURCE_EXHAUSTED"),
        (["{empty}"], 1, "the file is empty"),
        (["{folder}"], 1, "xla_dump_to"),
    ],
)
def test_faults(
    arguments: list[str], code: int, fault: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, folder = tmp_path / "empty.hlo", tmp_path / "folder"
    empty.write_text("")
    folder.mkdir()
    filled = [argument.format(module=module, empty=empty, folder=folder) for argument in arguments]
    check_failure(["explain", *filled], code, fault, capsys)
