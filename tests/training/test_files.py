"""Files are read without trust in what they hold."""

import pytest

from qemrl.training.files import parse_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 101 + b"]" * 101, "nested too deeply"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested too deeply"),
        (b"9" * 400, "more than 308 digits"),
        (b"9" * 5000, "more than 308 digits"),
        (b'"\\ud800"', "not Unicode: .* surrogates not allowed"),
        (b'"\xed\xa0\x80"', "not Unicode: .* can't decode"),
        (b"{", "Expecting"),
    ],
)
def test_json_that_only_malice_explains_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_json_that_is_large_or_odd_is_read():
    assert parse_json(b"[" * 100 + b"]" * 100)
    assert parse_json(b"[" + b"[1]," * 500 + b"[]]") == [[1]] * 500 + [[]]
    assert parse_json(b'"\\ud83d\\ude00 \\u00e9"') == "\U0001f600 \u00e9"
    assert parse_json(b"9" * 308) == 10**308 - 1
