"""Every sentence of SECURITY.md, with the tests that hold what it promises."""

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

from trtint8.data import DEMO_MODEL

ROOT = Path(__file__).parents[1]

_FUZZ = "fuzz/test_fuzz.py::test_hostile_files"
_UNTOUCHED = "fuzz/test_untouched.py::test_what_is_read_stays_byte_for_byte"
_ONLY_OUTPUTS = "fuzz/test_untouched.py::test_only_outputs_are_written"
_STORED = "trtint8/models/test_stored_tensors.py::"
_FILES = "calibrators/test_files.py::"
_RECORDS = "calibrators/test_records.py::"
_CHECKPOINT = "calibrators/host/test_checkpoint.py::"
_FUNCTIONS = "trtint8/models/passes/test_simplify.py::"
_DEPLOYED = "fuzz/test_deployments.py::test_every_place_of_a_sidecar_with_a_hostile_text"
_TOGETHER = f"{_FILES}TestWrittenTogether::"
_KILLED = (
    f"{_TOGETHER}test_after_a_kill_between_two_renames_the_next_run_finds_all_the_old_ones_or_all_the_new"
)
_LEFT = f"{_FILES}test_the_next_run_removes_what_a_killed_one_left"
_LOCKS = f"{_FILES}test_a_lock_that_somebody_else_made_is_neither_followed_nor_waited_for"
_UNREAD = "trtint8/test_built_files.py::test_what_cannot_be_read_is_an_error_and_not_a_file_that_says_less"
_CODE = "trtint8/runtime/test_engine.py::test_code_in_an_engine_is_allowed_by_the_caller_alone"

#: The beginning of a sentence to the tests of what it promises; none where it gives advice, or says what a
#: reader has to know.
PROMISES: dict[str, tuple[str, ...]] = {
    "You may read a stranger's files": (),
    "This page says": (),
    "Models, tables, calibration caches": (_FUZZ,),
    "Reading runs no code": (_UNTOUCHED,),
    "Arrays are loaded without pickle": (
        "calibrators/data/sources/test_arrays.py::TestFiles::test_refuses_python_objects",
    ),
    "Images are decoded as one of six": (
        "calibrators/data/images/test_files.py::test_postscript_never_starts_ghostscript",
    ),
    "JSON is decoded into typed records": (f"{_RECORDS}test_wrong_documents", f"{_RECORDS}test_limits"),
    "Packed data is unpacked up to": (
        "calibrators/tables/formats/test_json.py::test_counts_that_unpack_to_too_much_together",
    ),
    "A file that becomes shorter": (
        f"{_STORED}test_a_file_that_becomes_shorter_while_it_is_read",
        "calibrators/data/sources/test_arrays.py::TestFiles::test_npy_that_another_process_changes",
    ),
    "Names from files reach the terminal": (
        "trtint8/cli/test_output.py::test_control_characters_never_reach_the_terminal",
        "trtint8/cli/test_main.py::test_what_is_logged_cannot_steer_the_terminal",
    ),
    "Reading changes nothing": (_UNTOUCHED,),
    "No file is created, moved or removed": (
        _UNTOUCHED,
        "fuzz/test_untouched.py::test_a_folder_of_another_user_can_be_read",
    ),
    "A damaged or hostile file ends": (_FUZZ, "fuzz/test_fuzz.py::test_for_minutes"),
    "`tests/fuzz` holds this": (_FUZZ,),
    "A model reads no other files": (
        f"{_STORED}test_external_data_outside_the_folder",
        f"{_STORED}test_external_data_outside_the_folder_under_the_name_of_a_weight",
    ),
    "The weights of a model may lie": (f"{_STORED}test_values_in_files_are_read_wherever_the_tensor_stands",),
    "What the model says of them": (
        f"{_STORED}test_a_key_that_is_there_twice",
        f"{_STORED}test_records_are_checked_wherever_the_tensor_stands",
        f"{_STORED}test_external_data_outside_the_folder",
    ),
    "Links are followed inside": (f"{_STORED}test_a_link_that_stays_in_the_model_s_folder",),
    "A link that leads out of it": (
        f"{_STORED}test_a_link_that_leads_out_of_the_model_s_folder",
        f"{_STORED}test_a_model_that_is_a_link_beside_its_weights_in_a_cache",
    ),
    "Caches of downloads": (),
    "In other cases put a copy": (),
    "ONNX Runtime and TensorRT get": (f"{_STORED}test_files_that_become_shorter_after_they_were_read",),
    "Functions of a model are counted": (f"{_FUNCTIONS}test_functions_that_come_to_too_many_nodes",),
    "A model whose functions call themselves": (
        f"{_FUNCTIONS}test_functions_that_cannot_be",
        f"{_FUNCTIONS}test_functions_that_come_to_too_many_nodes",
    ),
    "Files have limits": (f"{_RECORDS}test_files_of_a_limited_size",),
    "Whatever trtint8 reads has to be": (
        f"{_RECORDS}test_what_is_no_regular_file_is_refused_and_not_waited_for",
    ),
    "A pipe is read only where": (
        f"{_RECORDS}test_a_pipe_that_the_user_has_connected_is_read_to_its_end",
        f"{_RECORDS}test_a_pipe_to_a_link_in_dev_fd_is_no_pipe_of_the_user",
    ),
    "Each kind of file has a largest size": (
        f"{_RECORDS}test_a_document_that_would_fill_memory_is_refused_before_it_is_parsed",
        "calibrators/data/images/test_coco_boxes.py::test_files_with_more_than_memory_holds_are_refused",
        "calibrators/data/images/test_true_boxes.py::test_labels_that_would_fill_memory_are_refused",
        "calibrators/data/images/test_files.py::test_an_image_file_larger_than_any_image_is_refused",
        "calibrators/data/images/test_files.py::test_more_pixels_than_fit_into_memory_are_not_made",
        "calibrators/data/sources/test_dataset_files.py::test_hostile_datasets_get_one_sentence",
    ),
    "An image takes time in proportion": (
        "calibrators/data/images/test_files.py::test_images_that_would_take_far_longer_than_their_pixels",
    ),
    "What trtint8 writes stays below": (
        "calibrators/tables/formats/test_json.py::test_a_file_that_would_be_too_large_has_fewer_bins_or_none",
        f"{_CHECKPOINT}test_what_would_be_too_large_to_be_read_again_is_not_written",
    ),
    "Arrays and plans may be as large": ("trtint8/engine/test_file.py::test_a_plan_that_no_memory_holds",),
    "Checkpoints are checked": (
        f"{_CHECKPOINT}test_a_file_that_no_calibration_of_this_version_has_written_is_refused",
        f"{_CHECKPOINT}test_a_file_that_no_calibration_has_written_is_refused",
    ),
    "One that is merely untrue": (),
    "A checkpoint is never a symbolic link": (
        f"{_CHECKPOINT}test_a_link_is_neither_read_nor_written_through",
        f"{_CHECKPOINT}test_verbs_refuse_a_link_in_the_place_of_their_checkpoint",
    ),
    "Only the outputs that you name": (_ONLY_OUTPUTS,),
    "A file that no earlier run has made": (
        "trtint8/test_built_files.py::test_what_no_build_has_made_is_not_overwritten",
    ),
    "A link is followed only where": (
        f"{_TOGETHER}test_nothing_is_written_through_a_link_that_the_user_did_not_name",
        f"{_TOGETHER}test_a_link_that_the_user_named_is_followed",
    ),
    "A symbolic link with the name": (
        "trtint8/test_built_files.py::test_no_file_beside_an_engine_is_written_through_a_link",
    ),
    "Temporary files have names of their own": (_ONLY_OUTPUTS,),
    "They stand in one folder beside the output": (_LEFT,),
    "A lock in it is held": (_LEFT,),
    "What a killed run has left": (
        _LEFT,
        f"{_TOGETHER}test_what_a_stranger_may_have_left_is_neither_believed_nor_followed",
    ),
    "On a file system without locks": (),
    "A file is the old one or the new one": (
        f"{_FILES}test_ctrl_c_at_any_line_leaves_the_old_files_or_the_new_ones_and_nothing_else",
    ),
    "Files that belong together": (_KILLED,),
    "A crash in these milliseconds": (_KILLED,),
    "Then readers say what is missing": (
        "trtint8/test_built_files.py::test_the_next_build_mends_what_a_kill_has_left",
    ),
    "What you changed meanwhile stays": (f"{_TOGETHER}test_what_was_changed_after_a_kill_is_not_replaced",),
    "What cannot be read is an error": (_UNREAD,),
    "A build does not take a file": (_UNREAD,),
    "Locks are plain files of yours": (_LOCKS,),
    "`trtint8-GPU.lock` among": (_LOCKS,),
    "A link, a pipe or another user's file": (_LOCKS,),
    "What `trtint8 deploy` writes is ours": (_DEPLOYED,),
    "Programs, scripts and configurations": (_DEPLOYED,),
    "Names from an engine's sidecar": (
        _DEPLOYED,
        "fuzz/test_deployments.py::test_the_example_has_every_field_of_every_record",
    ),
    "Nothing is copied that the model": (
        "trtint8/deployment/test_writing.py::test_a_file_that_the_model_does_not_name_stays_where_it_is",
        "trtint8/deployment/test_source.py::test_a_link_out_of_the_folder_is_not_followed",
    ),
    "Each kind of file is read by its": (_DEPLOYED,),
    "The plan inside is still code": (),
    "Plans are code": (),
    "A TensorRT plan is executed": ("trtint8/engine/test_file.py::test_plan_that_is_not_the_one_described",),
    "Load only engines": (),
    "The same holds for TensorRT plugins": (),
    "A version-compatible plan holds code": (_CODE,),
    "Reading a model is bounded": (),
    "`lint`, `quantize`, `migrate` and": (
        "trtint8/models/test_model.py::test_what_the_nodes_of_a_model_make_is_bounded_as_a_whole",
        "trtint8/models/passes/test_fold_constants.py::test_what_would_be_gigabytes_is_not_even_computed",
    ),
    "What its nodes and functions make": (
        "trtint8/models/test_model.py::test_what_the_nodes_of_a_model_make_is_bounded_as_a_whole",
        f"{_STORED}test_tensors_that_lie_on_each_other_in_a_file_are_bounded",
    ),
    "`calibrate`, `validate`, `sensitivity`": (),
    "A model is a program": (),
    "Run a stranger's model where": (),
    "Code that you name is run": (),
    "Ray clusters run what": (),
    "Use Ray's authentication": (),
    "Nothing is sent anywhere": ("test_security.py::test_no_connection_is_opened",),
    "It turns off what ONNX Runtime": ("test_nothing_is_sent.py::test_every_way_in_turns_it_off",),
    "With `--ray`, Ray connects": (),
    "When it starts one, it asks": (),
    "Nothing is imported from the current folder": (
        _UNTOUCHED,
        "trtint8/test___main__.py::test_files_of_the_current_folder_are_not_imported",
        "trtint8/cli/test_own_code.py::test_files_beside_a_named_module_are_imported_by_nothing_else",
    ),
    "What is installed goes before": (
        "trtint8/cli/test_own_code.py::test_a_file_with_the_name_of_an_installed_module_is_not_run",
    ),
    "No settings are read from there": (
        "calibrators/display/test_charts.py::test_no_settings_of_the_current_folder_are_read",
    ),
    "Two ways remain": ("trtint8/test___main__.py::test_folders_of_pythonpath_stay",),
    "Use the command": (),
    "A function of yours that starts Ray": (),
}


def sentences():
    """The sentences of what the page promises, without marks of Markdown that stand around words."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    text = page[page.index("## What trtint8 promises") :].replace("**", "")
    blocks = re.split(r"\n\s*\n|\n(?=- )", text)
    joined = (" ".join(block.split()).removeprefix("- ") for block in blocks)
    return [
        sentence
        for block in joined
        if not block.startswith("#")
        for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`])", block)
        if sentence
    ]


@functools.cache
def names_in(path):
    """The tests of a file, with their classes."""
    body = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    inside = {f"{one.name}::{node.name}" for one in classes for node in one.body if hasattr(node, "name")}
    return inside | {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_sentence_has_its_line():
    found = [[key for key in PROMISES if sentence.startswith(key)] for sentence in sentences()]
    unknown = [sentence for sentence, keys in zip(sentences(), found, strict=True) if len(keys) != 1]
    assert not unknown
    assert [key for (key,) in found] == list(PROMISES)  # in the order of the page


def test_every_promise_has_tests_that_exist():
    named = {name for names in PROMISES.values() for name in names}
    missing = sorted(
        name for name in named if name.partition("::")[2] not in names_in(name.partition("::")[0])
    )
    assert not missing


def test_no_connection_is_opened(tmp_path):
    code = (
        "import sys, os; "
        "sys.addaudithook(lambda name, _: name.startswith('socket.') and name != 'socket.gethostname' "
        "and os._exit(9)); "
        "from trtint8.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = ["calibrate", str(DEMO_MODEL), "random:4", "-o", "t.json", "--method", "minmax"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0
