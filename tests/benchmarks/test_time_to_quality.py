import json
import multiprocessing
import threading

import numpy as np
import pytest

from benchmarks import time_to_quality


def test_a_crossing_is_interpolated_on_the_curve():
    curve = [(2.0, 0.40), (4.0, 0.50), (6.0, 0.60)]
    assert time_to_quality.crossing(curve, 0.50) == 4.0
    assert time_to_quality.crossing(curve, 0.57) == pytest.approx(5.4)
    assert time_to_quality.crossing(curve, 0.20) == pytest.approx(1.0)
    assert time_to_quality.crossing(curve, 0.61) is None


def test_the_time_of_a_run_is_that_of_its_steps(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"config": {"batch_size": 10}}))
    lines = [
        {"step": 1, "loss": 3.0},
        {"step": 60, "images_per_second": 10.0},
        {"step": 60, "knn_accuracy": 0.4},
        {"step": 120, "images_per_second": 5.0, "knn_accuracy": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert time_to_quality.curve_of(tmp_path) == [(1.0, 0.4), (3.0, 0.5)]


def test_pytorch_trains_and_embeds_what_is_sent(rng):
    torch_simclr = pytest.importorskip("benchmarks.side_by_side.torch_simclr")
    problem = {"backbone": "resnet10", "width": 2, "batch": 8, "image_size": 8, "hidden": 8}
    here, there = multiprocessing.Pipe()
    arguments = (there, 1, "channels_last", problem)
    server = threading.Thread(target=torch_simclr.serve, args=arguments, daemon=True)
    server.start()
    views = rng.random((2, 8, 8, 8, 3)).astype(np.float32)
    losses = []
    for _ in range(30):
        here.send(list(views))
        losses.append(here.recv())
    assert losses[-1] < losses[0]
    here.send([views[0]])
    features = here.recv()
    assert features.shape == (8, 16)
    assert np.isfinite(features).all()
    here.close()
    server.join(10)
    assert not server.is_alive()
