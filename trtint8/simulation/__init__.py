"""INT8 simulated in ONNX Runtime: a prepared model, a placement and ranges, in whatever form is measured."""
