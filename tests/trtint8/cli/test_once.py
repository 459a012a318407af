"""Options that take one value."""

import pytest

from trtint8.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "option", "first", "second"),
    [
        ("tune m.onnx c.npz d.npz -o o.onnx --metric top1 --metric sqnr", "--metric", "top1", "sqnr"),
        ("tune m.onnx --metric top1 c.npz d.npz -o o.onnx --metric top1", "--metric", "top1", "top1"),
        ("deploy m.engine --to triton --to cpp -o d", "--to", "triton", "cpp"),
        ("audit m.onnx t.json --gpu A10 --gpu L4", "--gpu", "A10", "L4"),
        ("bench m.engine --baseline a.onnx --baseline b.onnx", "--baseline", "a.onnx", "b.onnx"),
    ],
)
def test_a_second_value_is_refused(arguments, option, first, second, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments.split())
    assert refused.value.code == 2
    wanted = f"argument {option}: it is given as {first} and as {second}, and only one is taken; give it once"
    assert wanted in capsys.readouterr().err
