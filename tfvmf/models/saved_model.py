"""Loads external SavedModels after checking their operations.

A SavedModel is a program. Some operations read and write files, open connections or call Python
when the model is loaded or called. `load_saved_model` rejects any operation that is not in
`allowed_ops.txt`. This is not a sandbox: it does not protect against bugs in TensorFlow.
"""

import functools
import importlib.resources
import os
import pathlib
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tfvmf.errors import UserError
from tfvmf.files import literal

_SHOWN = 8  # operations named in a message
# `tf.saved_model.save` adds two functions with these operations, for TensorFlow Serving.
_CHECKPOINT_OPS = frozenset(["MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"])


def load_saved_model(path: str | os.PathLike[str], *, trust_model: bool = False) -> Any:
    """`tf.saved_model.load`; UserError if an operation is not allowed, unless `trust_model`."""
    refused = [] if trust_model else sorted(refused_ops(path))
    if refused:
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise UserError(
            f"{path} contains {', '.join(refused[:_SHOWN])}{more}: operations that could read or "
            "write files, use the network or run code, or are unknown; if you trust whoever made "
            "it, load it with --trust_model (in Python: trust_model=True)"
        )
    try:
        with literal(path) as place:
            return tf.saved_model.load(place)
    except Exception as error:  # an unknown graph can raise anything
        raise UserError(f"{path} cannot be loaded as a SavedModel: {str(error)[:160]}") from error


def input_shape(path: str | os.PathLike[str]) -> list[int | None] | None:
    """Shape of the only input of `serving_default`, or None. Nothing is run."""
    for graph in _read(path).meta_graphs:
        inputs = list(graph.signature_def["serving_default"].inputs.values())
        if len(inputs) == 1 and not inputs[0].tensor_shape.unknown_rank:
            return [side.size if side.size > 0 else None for side in inputs[0].tensor_shape.dim]
    return None


def _read(path: str | os.PathLike[str]) -> saved_model_pb2.SavedModel:
    """Parses the file of a SavedModel."""
    file, model = pathlib.Path(path) / "saved_model.pb", saved_model_pb2.SavedModel()
    if not file.is_file():  # TensorFlow would load saved_model.pbtxt instead
        raise UserError(f"{path} is not a SavedModel (no file saved_model.pb)")
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # from protobuf or the file system
        raise UserError(f"{path} cannot be loaded: {file.name} is damaged ({error})") from error
    return model


def refused_ops(path: str | os.PathLike[str]) -> set[str]:
    """Names of the operations of a SavedModel that are not allowed. Nothing is run."""
    model = _read(path)
    # Otherwise TensorFlow 1's loader is used, which itself runs nodes of the graph.
    single = len(model.meta_graphs) == 1
    found: set[str] = set()
    for graph in model.meta_graphs:
        runs_functions = single and graph.HasField("object_graph_def")
        savers = _uncalled_savers(graph) if runs_functions else set()
        found |= {node.op for node in graph.graph_def.node}
        for function in graph.graph_def.library.function:
            ops = {node.op for node in function.node_def}
            found |= ops - _CHECKPOINT_OPS if function.signature.name in savers else ops
    return found - allowed_ops()


@functools.cache
def allowed_ops() -> frozenset[str]:
    """Names of the operations that an external model may contain."""
    text = importlib.resources.files("tfvmf.models") / "allowed_ops.txt"
    lines = text.read_text(encoding="utf-8").splitlines()
    return frozenset(" ".join(line for line in lines if not line.startswith("#")).split())


def _uncalled_savers(graph: meta_graph_pb2.MetaGraphDef) -> set[str]:
    """Functions that read or write checkpoints and that no object or function refers to."""
    library = graph.graph_def.library
    savers, others = set(), [graph.object_graph_def, *library.gradient]
    for function in library.function:
        saves = any(node.op in _CHECKPOINT_OPS for node in function.node_def)
        # A function may also replace another that implements the same.
        if saves and not any("implements" in name for name in function.attr):
            savers.add(function.signature.name)
        else:
            others.append(function)
    texts = [message.SerializeToString() for message in others]
    return {name for name in savers if not any(name.encode() in text for text in texts)}
