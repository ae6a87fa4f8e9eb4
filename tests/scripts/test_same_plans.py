"""The script that detects changes of plans between versions."""

import json
import sys
from pathlib import Path

import pytest
import same_plans


def test_it_tells_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_plans, "CASES", [("layered:12@1", {}, ("list", "given"))])
    monkeypatch.setattr(same_plans, "enable_compilation_cache", lambda: None)  # it changes settings of the process
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    monkeypatch.setattr(sys, "argv", ["same_plans.py", "--out", str(before)])
    same_plans.main()
    digests = json.loads(before.read_text())
    assert len(digests) == 2
    monkeypatch.setattr(sys, "argv", ["same_plans.py", "--out", str(after), "--against", str(before)])
    with pytest.raises(SystemExit) as end:
        same_plans.main()
    assert end.value.code == 0
    assert capsys.readouterr().out == "2 of 2 plans are the same\n"
    before.write_text(json.dumps(digests | {next(iter(digests)): ["0", 1, 1]}))
    with pytest.raises(SystemExit) as end:
        same_plans.main()
    assert end.value.code == 1
    assert capsys.readouterr().out.startswith(
        "1 of 2 plans are the same\ndiffers: layered:12@1 [] list: ['0', 1, 1], now "
    )
