import os

import pytest

from tfvmf.errors import UserError
from tfvmf.files import scratch
from tfvmf.serving.export import publish
from tfvmf.serving.loader import versions


def write(directory):
    with scratch(directory) as place:
        written = place / "model"
        written.mkdir()
        (written / "saved_model.pb").write_text("model")
        assert versions(directory) == sorted(versions(directory))
        return publish(written, directory)


def test_the_next_number_after_the_largest(tmp_path):
    directory = tmp_path / "not" / "yet" / "there"
    assert versions(directory) == []
    assert [write(directory).name for _ in range(3)] == ["1", "2", "3"]
    (directory / "1" / "saved_model.pb").unlink()
    (directory / "1").rmdir()  # a server takes the largest: a gap is not filled
    (directory / "12").mkdir()
    for name in (
        "models.config",
        "13.tmp",
        "-14",
        "1_5",
        "\N{ARABIC-INDIC DIGIT NINE}9",
        ".export-1",
    ):
        (directory / name).mkdir()
    assert write(directory).name == "13"
    assert versions(directory) == [2, 3, 12, 13]


def test_while_it_is_written_no_name_is_a_number(tmp_path):
    with scratch(tmp_path) as place:
        (place / "model").mkdir()
        assert [entry.name.isdigit() for entry in tmp_path.iterdir()] == [False]
        assert place.parent == tmp_path  # the same file system: a rename is one step


def test_what_fails_leaves_nothing(tmp_path):
    def interrupted():
        with scratch(tmp_path) as place:
            (place / "model").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_two_exports_at_once_get_two_numbers(tmp_path, monkeypatch):
    rename, raced = os.rename, []

    def late(source, target):
        if not raced:  # another export takes the number first
            raced.append(target)
            target.mkdir()
            (target / "saved_model.pb").write_text("theirs")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert write(tmp_path).name == "2"
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "theirs"


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="below cannot be written: Not a directory"),
        scratch(tmp_path / "file" / "below"),
    ):
        pass
