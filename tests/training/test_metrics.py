import contextlib
import json
import os

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator

from tfvmf.errors import UserError
from tfvmf.training.metrics import MetricsWriter, read_metrics


def test_lines_can_be_read_back(tmp_path):
    writer = MetricsWriter(tmp_path, step=0)
    writer.write(1, {"loss": 2.5})
    writer.write(2, {"loss": 2.0, "kappa": 1.0})
    writer.close()
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2, "kappa": 1}]


def test_a_restart_drops_what_will_be_written_again(tmp_path):
    lines = [{"step": step, "loss": 1.0} for step in (1, 5, 9)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 13, "lo')  # cut short by a kill
    MetricsWriter(tmp_path, step=5).close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 5]


def test_tensorboard_gets_the_same_values(tmp_path):
    writer = MetricsWriter(tmp_path, step=0)
    writer.write(7, {"loss": 2.5})
    writer.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = {
        value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert found == {"loss": (7, pytest.approx(2.5))}


def test_no_file_is_no_lines(tmp_path):
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("tail", [b'{"step": 9, "lo', b"\0\0\0\0", b"\xff\xfe{"])
def test_a_tail_of_garbage_is_left_out(tmp_path, tail):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + tail)
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_tensorboard_forgets_what_a_restart_writes_again(tmp_path):
    def write(start, steps):
        with contextlib.closing(MetricsWriter(tmp_path, step=start)) as writer:
            for step in steps:
                writer.write(step, {"loss": 10.0 * start + step})

    write(0, (1, 2, 3, 4))
    (first,) = (tmp_path / "tensorboard").iterdir()
    first.rename(first.with_name("events.out.tfevents.1.earlier"))  # a name begins with its second
    write(2, (3, 4, 5))
    newest = max((tmp_path / "tensorboard").iterdir())  # cut short by a kill
    newest.write_bytes(newest.read_bytes()[:-5])
    shown = plugin_event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    values = [(event.step, tf.make_ndarray(event.tensor_proto)) for event in shown.Tensors("loss")]
    assert values == [(1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0)]


def test_a_full_disk_is_told_in_a_line(tmp_path):
    writer = MetricsWriter(tmp_path, step=0)
    with contextlib.closing(writer), open("/dev/full", "w") as full:
        os.dup2(full.fileno(), writer._file.fileno())
        with pytest.raises(UserError, match=r"metrics.jsonl cannot be written: No space left"):
            writer.write(1, {"loss": 1.0})
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), writer._file.fileno())


def test_damage_in_the_middle_loses_no_other_line(tmp_path):
    garbage = [b"{", b"3", b'{"loss": 1}', b'{"step": "5"}', b'{"step": 5, "loss": null}', b"["]
    garbage += [b'{"step": 5, "loss": ' + b"9" * 999 + b"}", b"[" * 100_000, b"\0\xff"]
    lines = [b'{"step": 1}', *garbage, b'{"step": 6, "loss": NaN}', b'{"step": 7}']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 6, 7]
    MetricsWriter(tmp_path, step=6).close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 6]


def test_lines_that_cannot_be_read_are_not_taken_for_none(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        MetricsWriter(tmp_path, step=0)
