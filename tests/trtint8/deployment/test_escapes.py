"""Texts in other languages."""

import ast
import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.deployment.escapes import (
    c_literal,
    fits_command,
    fits_key_file,
    json_document,
    markdown_code,
    shell_words,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(TEXTS)
def test_a_literal_of_c_is_one_and_means_the_text(text):
    literal = c_literal(text)
    assert literal.isascii() and literal.isprintable() and "??" not in literal
    # Escapes of Python's literals of bytes are those of C.
    assert ast.literal_eval(f"b{literal}").decode() == text


def test_a_literal_of_c_is_readable():
    assert c_literal("in/x:0") == '"in/x:0"'
    assert c_literal('a"\\\né?') == r'"a\"\\\012\303\251\077"'


@given(st.lists(TEXTS, max_size=4))
def test_words_of_a_shell_are_those_that_it_reads(words):
    assert shlex.split(shell_words(words)) == words


@given(TEXTS)
def test_json_means_the_value(text):
    document = json_document({text: [text]})
    assert document.isascii() and json.loads(document) == {text: [text]}


@given(TEXTS)
def test_a_code_span_is_one_line_that_nothing_ends(text):
    span = markdown_code(text)
    assert span[0] == span[-1] == "`" and len(span) > 2
    assert span[1:-1].isprintable() and not set(span[1:-1]) & set("`|")
    shown = ast.literal_eval("'" + span[1:-1].replace("'", "\\'") + "'")
    assert shown == (text or " ")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("images", "`images`"),
        ("a|b`c\\", r"`a\x7cb\x60c\x5c`"),
        ("a\nb\u202e\U000e0001", r"`a\x0ab\u202e\U000e0001`"),
        ("<b>é</b>", "`<b>é</b>`"),
        ("", "` `"),
    ],
)
def test_a_code_span_shows_what_it_cannot_hold(text, span):
    assert markdown_code(text) == span


def test_what_a_command_and_a_key_file_hold():
    assert all(map(fits_command, ("x:0", "a b", "é", "")))
    assert not any(map(fits_command, ("a\nb", "a\x00", "\x1b[2J", "\u2028")))
    assert all(map(fits_key_file, ("x:0", "/fc/Gemm_output_0", "a b", "output[1]", "é", "#x")))
    assert not any(map(fits_key_file, ("", " x", "x ", "a;b", "a\\b", "a%b", "a\nb", "\u2028")))
