"""Measured speed beside an audit."""

import dataclasses

from tests.trtint8.report.samples import bench_report
from trtint8.report.layers import make_speed_rows


def test_a_single_engine_has_no_speedup(found):
    alone = dataclasses.replace(found.bench, reports=found.bench.reports[:1])
    assert make_speed_rows(dataclasses.replace(found, bench=alone))[0].speedup is None


def test_an_engine_of_another_name_has_no_audit(found):
    bench = dataclasses.replace(
        found.bench, reports=(bench_report("other.engine", 100, 1.0), bench_report("FP16", 50, 2.0))
    )
    other, half = make_speed_rows(dataclasses.replace(found, bench=bench))
    assert (other.moved_bytes, half.moved_bytes) == (None, 20_000_000)


def test_without_an_audit_or_a_measurement(found):
    alone = make_speed_rows(dataclasses.replace(found, audit=None))
    assert [row.moved_bytes for row in alone] == [None, None]
    assert make_speed_rows(dataclasses.replace(found, bench=None)) == ()
