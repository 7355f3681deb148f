"""Serving: export to TensorFlow Serving, and exported models without a server."""

from tfvmf.serving.export import export_model
from tfvmf.serving.facts import read_facts
from tfvmf.serving.folder import embed_folder
from tfvmf.serving.loader import ServedModel, load

__all__ = ["ServedModel", "embed_folder", "export_model", "load", "read_facts"]
