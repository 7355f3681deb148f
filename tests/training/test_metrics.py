import json

import pytest
import tensorflow as tf

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
