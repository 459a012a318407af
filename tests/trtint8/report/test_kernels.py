import dataclasses

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.auditing.kernels import product, report, requantization
from tests.trtint8.report.samples import audit, engine_info, table
from trtint8.report.layers import make_audit_summary, make_kernel_table

SPACE = "\N{NO-BREAK SPACE}"


def texts(rows):
    return [[cell.replace(SPACE, " ") for cell in row] for row in rows]


def test_the_kernels_of_an_engine():
    layers = report(product("a", "Int8", "Float", 1_000_000), requantization("a", 1_000_000))
    found = make_kernel_table(dataclasses.replace(engine_info(table()), layers=layers))
    assert found.columns == ("kernels", "read", "written")
    assert texts(found.rows) == [
        ["INT8 compute", "1", "1.00 MB", "4.00 MB"],
        ["requantization", "1", "4.00 MB", "1.00 MB"],
    ]
    assert texts([found.total]) == [["all", "2", "5.00 MB", "5.00 MB"]]


def test_times_of_a_small_network_are_in_microseconds():
    whole = audit(table())
    engines = tuple(
        dataclasses.replace(
            engine,
            parts=tuple(dataclasses.replace(part, seconds=part.seconds / 1000) for part in engine.parts),
            seconds=engine.seconds / 1000,
        )
        for engine in whole.engines
    )
    seconds = make_audit_summary(dataclasses.replace(whole, engines=engines)).seconds
    assert texts([*seconds.rows, seconds.total]) == [
        ["INT8 compute", "", "0.027 us"],
        ["float compute", "0.022 us", ""],
        ["requantization", "", "0.027 us"],
        ["all", "0.022 us", "0.054 us"],
    ]
