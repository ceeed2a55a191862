"""TOML files that anybody may have written: data, or an error at once that names the file and the place."""

import os

import pytest

from qemrl.experiments.toml_files import parse_toml, read_toml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000, "f: tables and lists are nested more than 20 deep"),
        ("a = " + "[" * 40 + "]" * 40, "f: a is nested more than 20 deep"),
        ("a = " + "{b = " * 30 + "1" + "}" * 30, r"f: a.b.b.* is nested more than 20 deep"),
        ("a" + ".a" * 40_000 + " = 1", "f: a name has more than 20 parts"),
        ('a = {"b" ' + '."b c"' * 40_000 + " = 1}", "f: a name has more than 20 parts"),
        ("a.b = 0x" + "f" * 5000, "f: a.b is a whole number of 20000 bits"),
        ("a = -9223372036854775809", "f: a is a whole number of 64 bits"),
        ("a = " + "9" * 5000, "f is not TOML: .*4300 digits"),
        ("a = ['" + "x" * 2000 + "']", "f: a has 2,000 characters, and at most 1,000 are read"),
        ('a."b\\u001b[31m" = 3', r"f: a: 'b\\x1b\[31m' is no name"),
        ("x" * 2000 + " = 3", "f: 'xxx.*… is no name"),
        ("a = ", "f is not TOML: Invalid value"),
    ],
)
def test_what_nobody_means_is_refused_with_its_place(text, message):
    with pytest.raises(ValueError, match=message) as raised:
        parse_toml(text, "f")
    assert len(str(raised.value)) < 300


def test_long_lists_of_numbers_and_texts_with_many_dots_are_read():
    text = f"a = {[0.5] * 10_000}\nb = '{'a, b.c. ' * 100}'\nc = -9223372036854775808  # {'.' * 5000}\n"
    assert parse_toml(text, "f")["c"] == -(2**63)


def test_what_is_no_file_or_no_text_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes("# für".encode("latin-1"))
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    for name, message in [
        ("pipe", "pipe is not a file but a folder, a pipe or a device"),
        ("", "is not a file but a folder"),
        ("/dev/zero", "/dev/zero is not a file"),
        ("latin", "latin is not TOML: .*TOML is text in UTF-8"),
        ("large", "large has more than 1,000,000 bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_toml(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_toml(tmp_path / "missing")
    (tmp_path / "empty").touch()
    assert read_toml(tmp_path / "empty") == {}
