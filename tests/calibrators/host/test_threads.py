import os

from calibrators.host.threads import available_threads


def test_a_containers_quota_is_rounded_up_and_never_exceeds_the_processors(tmp_path):
    processors = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    found = {}
    for text in ("50000 100000", "150000 100000", "max 100000", "9900000 100000", "nonsense"):
        quota.write_text(text)
        found[text] = available_threads(quota)
    assert found == {
        "50000 100000": 1,
        "150000 100000": min(2, processors),
        "max 100000": processors,
        "9900000 100000": min(99, processors),
        "nonsense": processors,
    }
    assert available_threads(tmp_path / "missing") == processors
