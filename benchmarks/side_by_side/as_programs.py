"""Imported first by every candidate of ours: brings TensorFlow up as the programs of bin/ do."""

from tfvmf import cli

cli.import_tensorflow()
