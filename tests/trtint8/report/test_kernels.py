import dataclasses

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.auditing.kernels import product, report, requantization
from tests.trtint8.report.samples import HOSTILE, audit, engine_info, table
from trtint8.report.layers import KernelTable, make_audit_summary, make_kernel_table

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


def test_shapes_that_are_not_known():
    found = make_kernel_table(engine_info(table()))
    assert found == KernelTable(("kernels",), (("INT8 compute", "1"), ("float compute", "1")), ("all", "2"))


def test_nothing_to_show():
    assert make_kernel_table(None) is None
    assert make_kernel_table(dataclasses.replace(engine_info(table()), layers=None)) is None
    assert make_audit_summary(None) is None


def test_an_audit():
    found = make_audit_summary(audit(table()))
    assert (found.gpu, found.shapes) == ("RTX 4090", "images 8×3×16×16")
    assert found.verdict.endswith(f"{HOSTILE} and second are the reason")
    assert found.kernels == KernelTable(
        ("FP16", "INT8+FP16"),
        (("INT8 compute", "", "2"), ("float compute", "2", ""), ("requantization", "", "2")),
        ("all", "2", "4"),
    )
    assert texts([*found.traffic.rows, found.traffic.total]) == [
        ["INT8 compute", "", "25.00 MB"],
        ["float compute", "20.00 MB", ""],
        ["requantization", "", "25.00 MB"],
        ["all", "20.00 MB", "50.00 MB"],
    ]
    assert texts([found.seconds.total]) == [["all", "0.022 ms", "0.054 ms"]]


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
