"""Only errors of this project come out of hostile files, within two seconds and 256 MB a case.

    pytest tests/fuzz                          # a sample of the cases
    pytest tests/fuzz --fuzz-minutes 60        # other cases, for an hour; findings are written to a folder

A finding is kept as a test of the module that was wrong.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.checkpoints import change_field
from tests.fuzz.hostile import DOCUMENTS, change_bytes, change_document, change_message
from tests.fuzz.limits import Breach, run_case
from tests.fuzz.targets import TARGETS, Target

#: Cases of such a reader before it is another's turn, in a long run.
_TURN = 400


@cache
def _examples(target: Target) -> list[bytes]:
    return target.examples()


@cache
def _documents(target: Target) -> list[object]:
    return [json.loads(data) for data in _examples(target)]


@cache
def _all_examples() -> list[bytes]:
    return [data for target in TARGETS for data in _examples(target)]


@st.composite
def _contents(draw: st.DrawFn, target: Target) -> bytes:
    """Content of a file that a reader may meet: a real one that was changed."""
    chance = draw(st.randoms(use_true_random=True))
    number = draw(st.integers(0, len(_examples(target)) - 1))
    data = _examples(target)[number]
    if target.kind == "json" and draw(st.integers(0, 3)):
        document = _documents(target)[number]
        for _ in range(draw(st.integers(1, 3))):
            document = change_document(chance, document, draw(DOCUMENTS))
        return json.dumps(document).encode()
    if target.kind == "onnx" and draw(st.integers(0, 3)):
        model = onnx.ModelProto.FromString(data)
        change_message(chance, model)
        return model.SerializeToString()
    if target.kind == "checkpoint" and draw(st.integers(0, 7)):
        return change_field(chance, data, draw(DOCUMENTS))
    return change_bytes(chance, data, _all_examples())


def _run(target: Target, folder: Path, data: bytes) -> Breach | None:
    """Runs one case in an empty folder."""
    for path in folder.iterdir():
        path.unlink()
    for name, content in target.beside().items():
        (folder / name).write_bytes(content)
    path = folder / target.file
    path.write_bytes(data)
    return run_case(lambda: target.use(path))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_files(target: Target, tmp_path: Path, fuzz_minutes: float) -> None:
    if fuzz_minutes:
        pytest.skip("the long run has cases of this reader too")

    cases = 3 * settings.default.max_examples // target.cost + 5

    @settings(max_examples=cases, phases=(Phase.generate,))
    @given(data=_contents(target))
    def run(data: bytes) -> None:
        breach = _run(target, tmp_path, data)
        assert breach is None, f"{breach.kind}\n{breach.text}\n{data[:2000]!r}"

    _use_real_files(target, tmp_path)
    run()


def _use_real_files(target: Target, folder: Path) -> None:
    """The first real file is read, so that cases begin where readers go on; others may be refused."""
    first, *others = _examples(target)
    for data in others:
        breach = _run(target, folder, data)
        assert breach is None, f"{breach.kind}\n{breach.text}"
    assert _run(replace(target, use=lambda _path: None), folder, first) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        target.use(folder / target.file)


@pytest.mark.timeout(0)
def test_for_minutes(
    tmp_path: Path, fuzz_minutes: float, fuzz_findings: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """Cases of all readers in turn, until the time is over."""
    if not fuzz_minutes:
        pytest.skip("only with --fuzz-minutes")
    kept = Path(request.config.rootpath) / "fuzz-findings"
    end, turn = time.monotonic() + 60 * fuzz_minutes, random.SystemRandom().randrange(1 << 30)
    while time.monotonic() < end:
        for target in TARGETS:
            _try_many(target, tmp_path, kept, turn, fuzz_findings)
            if time.monotonic() > end:
                break
        turn += 1
    assert set(fuzz_findings) == {"cases"}


def _try_many(target: Target, folder: Path, kept: Path, turn: int, found: dict[str, int]) -> None:
    @seed(turn)
    @settings(max_examples=_TURN // target.cost + 1, phases=(Phase.generate,), derandomize=False)
    @given(data=_contents(target))
    def run(data: bytes) -> None:
        found["cases"] += 1
        breach = _run(target, folder, data)
        if breach is not None:
            _keep(kept, target, data, breach, found)

    run()


def _keep(folder: Path, target: Target, data: bytes, breach: Breach, found: dict[str, int]) -> None:
    """Counts a finding, and writes the first of its cause to a folder."""
    cause = f"{target.name}: {breach.kind}"
    if cause not in found:
        folder.mkdir(exist_ok=True)
        stem = "".join(letter if letter.isalnum() else "-" for letter in cause)
        (folder / f"{stem}.case").write_bytes(data)
        (folder / f"{stem}.txt").write_text(f"{cause}\n{breach.text}\n")
    found[cause] = found.get(cause, 0) + 1
