"""Imported first by every candidate of ours: brings TensorFlow up as the programs of bin/ do."""

from tfvmf.programs import cli

cli.import_tensorflow()
