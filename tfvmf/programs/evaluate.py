"""Measures a trained run and writes tables and plots to <workdir>/eval, or to --output.

  tfvmf evaluate runs/digits-simclr_vmf
  tfvmf evaluate runs/mine --suite=cifar10c --data_dir=DIR
  tfvmf evaluate runs/mine --suite=cifar10c --max_images=1000
  tfvmf evaluate runs/mine folder:/labeled/images
  tfvmf evaluate runs/mine --suite=ood --in_source=cifar10 --ood_sources=cifar100,mnist
  tfvmf evaluate runs/mine --suite=decision --ood_sources=cifar100,mnist --max_error=0.05
  tfvmf evaluate runs/mine --suite=agreement --max_images=1000 --ood_sources=mnist
  tfvmf evaluate --compare=runs/mine,runs/other

MODEL, or --workdir, is the run; DATA is labeled data to measure it on, the run's own by default.
MODEL may also be the .keras file of an encoder (`tfvmf export --keras` writes one); then name DATA.
--compare measures nothing: it shows existing results of several runs side by side on one page.
"""

import dataclasses
import functools
import pathlib
from typing import Any

from absl import flags

from tfvmf import evaluation
from tfvmf.errors import UserError
from tfvmf.files import beside, find_model, read_text
from tfvmf.programs import cli
from tfvmf.progress import printable
from tfvmf.settings import MAX_PIXELS

ARGUMENTS = ("model", "data")
_ASKED = "\n".join(f"{name:<15}{suite.question}" for name, suite in evaluation.SUITES.items())
_SCORES = f"measures of uncertainty, separated by commas: {', '.join(evaluation.SCORES)}"
FLAGS: cli.Flags = {
    "model": "a trained run, as --workdir, a shipped name, or the .keras file of an encoder",
    "workdir": f"directory of a trained run; {cli.DEFAULT_RUN} by default",
    "data": "labeled data to measure on; what the run is judged on by default",
    "output": "directory of the results; <run>/eval by default, <run>/eval-<data> with DATA",
    "data_dir": "where TFDS finds prepared data sets, if not where the run found them",
    "max_images": "measure a sample of this many test images, in a directory of its own; 0: all",
    **dict.fromkeys(("checkpoint", "download", "max_pixels", "trust_model"), ""),
    "suite": ("all", f"all, or some of these, separated by commas\n{_ASKED}"),
    "score": ("", f"{_SCORES}; by default kappa, if the run has it"),
    "num_passes": (16, "forward passes of --score=dropout", 2),
    "num_views": (8, "views of --score=agreement and --suite=agreement", 2),
    "corruptions": ("generate", "cifar10c: generate, or tfds for cifar10_corrupted in --data_dir"),
    "corrupted_dir": ("", "cifar10c: directory of CIFAR-10-C's .npy files to read instead"),
    "in_source": ("", "ood: familiar data; the run's own by default"),
    "ood_sources": ("", "ood, decision, agreement: foreign data, such as cifar100,mnist"),
    "alpha": (float, "decision: share of familiar images that may be rejected; the run's, 0.05", 0),
    "max_error": (float, "decision: find the smallest alpha with at most this share of errors", 0),
    "compare": ("", "runs whose results are shown side by side, separated by commas"),
    "supervised_workdir": ("", "ood: a run of --method=supervised, for the scores with F_res"),
}


def main(values: flags.FlagValues) -> None:
    """Runs the suites, prints their headlines."""
    if values.compare:
        if values.model or values.workdir:
            given = values.model or values.workdir
            raise UserError(f"--compare={values.compare}: name all runs there, not as {given}")
        from tfvmf.evaluation import report

        page = report.compare(cli.listed(values.compare), output=values.output)
        print(f"report: {printable(str(page))}")
        return
    if values.model and values.workdir:
        raise UserError(f"--workdir={values.workdir}: the run is already named, {values.model}")
    # Misspelled names are reported before TensorFlow is imported, which takes seconds.
    chosen = evaluation.check_names(values.suite)
    if values.max_error is not None and not {"all", "decision"} & set(chosen):
        raise UserError(f"--max_error={values.max_error:g}: only used by --suite=decision")
    options = evaluation.Options(
        scores=cli.listed(values.score),
        ood_sources=cli.listed(values.ood_sources),
        **cli.given(values, "max_images num_passes num_views alpha max_error"),
        **cli.given(values, "corruptions corrupted_dir in_source"),
    )
    cli.import_tensorflow()
    subject = _load(values, find_model(values.model or values.workdir or cli.DEFAULT_RUN))
    if values.supervised_workdir:
        try:
            supervised = evaluation.subject_from_run(
                values.supervised_workdir, **cli.given(values, "data_dir max_pixels trust_model")
            )
        except UserError as error:
            raise UserError(f"--supervised_workdir: {error}") from error
        options = dataclasses.replace(options, supervised=supervised)
    evaluation.evaluate(subject, values.suite, options)


def _load(values: flags.FlagValues, model: pathlib.Path) -> Any:
    """The subject: a run with its own or other data, or the encoder in a file."""
    import tfvmf
    from tfvmf import data, training
    from tfvmf.data import corruptions

    further = [values.in_source, *cli.listed(values.ood_sources)]
    if values.corruptions == "tfds" and not values.corrupted_dir:
        further += [
            corruptions.tfds_spec(name, severity)
            for name in corruptions.CORRUPTIONS
            for severity in corruptions.SEVERITIES
        ]
    if read_text(model / "config.json") is not None or not model.exists():
        if values.download:
            config, _ = training.run_directory.read(model)
            own = values.data or config.data.eval_source or config.data.source
            cli.download(values, [own, *further], data_dir=config.data.data_dir)
        named = f"eval-{cli.short_name(values.data)}" if values.data else "eval"
        return evaluation.subject_from_run(
            model,
            directory=values.output or beside(model) / named,
            **cli.given(values, "checkpoint data data_dir max_pixels trust_model"),
        )
    loaded = tfvmf.load(model, trust_model=values.trust_model)
    encoder = loaded.encoder  # for an export, the error says to name its run
    if not values.data:
        raise UserError(f"--data is missing: {model} is not a run, which knows its data")
    cli.download(values, [values.data, *further])
    load = functools.partial(
        data.load_source,
        data_dir=values.data_dir,
        image_size=loaded.card["image_size"],
        max_pixels=values.max_pixels or MAX_PIXELS,
    )
    return evaluation.Subject(
        encoder=encoder,
        train=load(values.data, "train"),
        test=load(values.data, "test"),
        name=model.stem,
        load=load,
        directory=values.output or f"runs/{model.stem}/eval-{cli.short_name(values.data)}",
    )
