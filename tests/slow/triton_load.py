"""Drives a Triton server with its own clients; runs in the server's environment, not in ours.

python triton_load.py HTTP_PORT GRPC_PORT PID REQUESTS.npz ANSWERS.npz -> JSON on the last line
"""

import concurrent.futures
import json
import pathlib
import sys
import time

import numpy as np
import tritonclient.grpc
import tritonclient.http

CLIENTS, REQUESTS, LONG = 8, 200, 10_000
TYPES = {"uint8": "UINT8", "float32": "FP32", "object": "BYTES"}
PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


class Client:
    """One connection; `ask` sends a batch and gives the outputs by name."""

    def __init__(self, protocol, port):
        self.kind = PROTOCOLS[protocol]
        self.client = self.kind.InferenceServerClient(f"127.0.0.1:{port}")

    def ask(self, model, name, batch, outputs):
        given = self.kind.InferInput(name, batch.shape, TYPES[batch.dtype.name])
        given.set_data_from_numpy(batch)
        wanted = [self.kind.InferRequestedOutput(output) for output in outputs]
        answer = self.client.infer(model, [given], outputs=wanted)
        return {output: answer.as_numpy(output) for output in outputs}


def family(pid):
    """A process and its children, in KiB of resident memory."""
    pids = [pid]
    for each in pids:
        tasks = pathlib.Path(f"/proc/{each}/task").glob("*/children")
        pids += [int(child) for task in tasks for child in task.read_text().split()]
    lines = [
        line
        for each in pids
        for line in pathlib.Path(f"/proc/{each}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return sum(int(line.split()[1]) for line in lines)


def load(protocol, port, model, images, outputs, *, requests):
    """`CLIENTS` threads with a connection each: answers by index of the image, seconds of each."""

    def work(worker):
        client, seconds, answers = Client(protocol, port), [], []
        for number in range(requests):
            row = (worker * requests + number) % len(images)
            start = time.perf_counter()
            answer = client.ask(model, "images", images[row : row + 1], outputs)
            seconds.append(time.perf_counter() - start)
            answers.append((row, answer))
        return seconds, answers

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(work, range(CLIENTS)))
    wall = time.perf_counter() - start
    return [s for f in found for s in f[0]], [a for f in found for a in f[1]], wall


def main():
    http, grpc, pid = map(int, sys.argv[1:4])
    ports = {"http": http, "grpc": grpc}
    with np.load(sys.argv[4], allow_pickle=True) as given:
        images, files, bad = given["images"], given["files"], given["bad"]
    expected = dict(np.load(sys.argv[5]))
    outputs = list(expected)
    result = {"load": {}, "errors": {}, "memory": []}
    for model in ("tfvmf", "tfvmf_onnx"):
        for protocol, port in ports.items():
            load(protocol, port, model, images, outputs, requests=5)  # warm
            seconds, answers, wall = load(protocol, port, model, images, outputs, requests=REQUESTS)
            worst = {
                name: max(
                    float(np.abs(a[name].reshape(-1).astype(float) - expected[name][row]).max())
                    for row, a in answers
                )
                for name in outputs
            }
            result["load"][f"{model} {protocol}"] = {
                "requests": len(seconds),
                "p50": float(np.percentile(seconds, 50)),
                "p99": float(np.percentile(seconds, 99)),
                "images_per_second": len(seconds) / wall,
                "worst": worst,
            }
    cases = {
        "wrong dtype": ("tfvmf", "images", images[:1].astype(np.float32)),
        "wrong channels": ("tfvmf", "images", images[:1, ..., :2].copy()),
        "no pixels": ("tfvmf", "images", np.zeros((1, 0, 5, 3), np.uint8)),
        "too many": ("tfvmf", "images", np.repeat(images[:1], 65, axis=0)),
        "empty batch": ("tfvmf", "images", images[:0]),
        "unknown model": ("nothing", "images", images[:1]),
        **{
            f"bad file {i}": ("tfvmf_bytes", "image_bytes", bad[i : i + 1, None])
            for i in range(len(bad))
        },
    }
    for protocol, port in ports.items():
        client = Client(protocol, port)
        for case, (model, name, batch) in cases.items():
            try:
                client.ask(model, name, batch, outputs)
                told = ""
            except Exception as error:  # of either client
                told = str(error)
            result["errors"][f"{case}, {protocol}"] = told
            again = client.ask("tfvmf", "images", images[:1], outputs)["concentration"]
            assert abs(float(again.reshape(-1)[0]) - expected["concentration"][0]) < 1e-4
        read = client.ask("tfvmf_bytes", "image_bytes", files[:, None], outputs)["concentration"]
        result[f"bytes {protocol}"] = read.reshape(-1).tolist()
    result["memory"].append(family(pid))
    for _ in range(10):
        load("grpc", grpc, "tfvmf", images, outputs, requests=LONG // 10 // CLIENTS)
        result["memory"].append(family(pid))
    print(json.dumps(result))


main()
