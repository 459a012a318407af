"""A mended model computes what the original does, or a finding names the pair whose steps are given up.

pytest tests/fuzz/test_mended_chains.py                        # a sample of the cases
pytest tests/fuzz/test_mended_chains.py --fuzz-minutes 10      # other cases, for ten minutes
"""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import Phase, given, seed, settings
from numpy.typing import NDArray

from calibrators.errors import ModelError
from calibrators.host.session import open_session
from tests.fuzz.pair_chains import Chain, chains
from trtint8.interop.lint import Finding, Mended, lint, mend
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto

#: Rules whose findings say that steps are given up.
GIVEN_UP = {"steps", "weight-steps", "attention"}


def _run(model: onnx.ModelProto, feed: dict[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    output = open_session(model.SerializeToString(), optimize=False).run(None, feed)[0]
    return np.asarray(output, np.float64)


def _sqnr(wanted: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Signal to difference in dB, without the one value in fifty that another rounding may move."""
    errors = np.sort(np.square(wanted - found).reshape(-1))
    noise = errors[: max(1, len(errors) - len(errors) // 50)].sum()
    signal = np.square(wanted).sum()
    return np.inf if not noise else 10 * np.log10(signal / noise) if signal else -np.inf


def _mended(chain: Chain) -> tuple[list[Finding], Mended | None]:
    """The findings, and the mended model; None where a finding says that it cannot be mended."""
    model = load_model(chain.model)
    findings = lint(model)
    if all(finding.mendable for finding in findings):
        return findings, mend(model)
    with pytest.raises(ModelError):
        mend(model)
    return findings, None


def check(chain: Chain) -> str:
    """Checks one model.

    Returns:
        What became of it: ``refused``, ``equal`` or ``named``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            findings, mended = _mended(chain)
        except ModelError as error:
            assert "no Q/DQ pairs" in str(error)
            return "refused"
        if mended is None:
            return "refused"
        made = to_proto(mended.graph_model)
        onnx.checker.check_model(made, full_check=True)
        named = [finding for finding in findings if finding.rule in GIVEN_UP]
        assert all(finding.node for finding in findings)
        for feed in chain.feeds:
            sqnr = _sqnr(_run(chain.model, feed), _run(made, feed))
            assert named or sqnr > 60, f"{sqnr:.1f} dB with {[finding.rule for finding in findings]}"
        if any(node.op_type == "DequantizeLinear" for node in made.graph.node):
            assert {finding.rule for finding in lint(load_model(made))} <= {"concat-scales", "one-sided"}
    return "named" if named else "equal"


def _check_and_keep(chain: Chain, folder: Path) -> str:
    """Checks one model, and writes it to a folder where it fails."""
    try:
        return check(chain)
    except Exception:
        folder.mkdir(exist_ok=True)
        onnx.save(chain.model, folder / "chain.onnx")
        np.savez(folder / "chain.npz", **{f"x{i}": feed["x"] for i, feed in enumerate(chain.feeds)})
        raise


def test_random_chains(fuzz_minutes: float, tmp_path: Path) -> None:
    if fuzz_minutes:
        pytest.skip("the long run has such cases too")
    verdicts = dict.fromkeys(("refused", "equal", "named"), 0)

    cases = 3 * settings.default.max_examples

    @settings(max_examples=cases, phases=(Phase.generate,))
    @given(chain=chains())
    def run(chain: Chain) -> None:
        verdicts[_check_and_keep(chain, tmp_path)] += 1

    run()
    assert verdicts["equal"] > cases // 5 and verdicts["refused"] < cases // 3


@pytest.mark.timeout(0)
def test_chains_for_minutes(
    fuzz_minutes: float, fuzz_findings: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """Other cases until the time is over; the first that fails ends it."""
    if not fuzz_minutes:
        pytest.skip("only with --fuzz-minutes")
    kept = Path(request.config.rootpath) / "fuzz-findings"
    end, turn = time.monotonic() + 60 * fuzz_minutes, random.SystemRandom().randrange(1 << 30)
    while time.monotonic() < end:

        @seed(turn)
        @settings(max_examples=100, phases=(Phase.generate,), derandomize=False)
        @given(chain=chains())
        def run(chain: Chain) -> None:
            fuzz_findings["cases"] += 1
            _check_and_keep(chain, kept)

        run()
        turn += 1
