"""What a build leaves."""

from pathlib import Path

from trtint8.built_files import float_file_of, qdq_file_of, table_file_of


def test_files_stand_beside_the_engine_under_its_name():
    engine = Path("engines") / "resnet50.v2.engine"
    assert qdq_file_of(engine) == Path("engines/resnet50.v2.qdq.onnx")
    assert float_file_of(engine) == Path("engines/resnet50.v2.float.onnx")
    assert table_file_of(engine) == Path("engines/resnet50.v2.table.json")
