"""The command `tfvmf`: its verbs, the grammar of arguments, names that are nearly right."""

import importlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import pytest
from absl import flags
from helpers.commands import ROOT, run_before_tensorflow
from helpers.untrained import make_run

import tfvmf
from tfvmf import data, evaluation, methods, posthoc, serving, training
from tfvmf.config import declared
from tfvmf.embedding import local
from tfvmf.programs import VERBS, cli, main

PROGRAMS = {
    verb: importlib.import_module(f"tfvmf.programs.{verb.replace('-', '_')}") for verb in VERBS
}

HELPS = ("--help", "--version")
# Command, and what its one line of error must hold.
MISTAKES = [
    ([], "train, evaluate, export, embed, select, explore, fit-kappa, reproduce"),
    (["trian"], "did you mean train?"),
    (["fitkappa"], "did you mean fit-kappa?"),
    (["xyz"], "train, evaluate"),
    (["--verson"], "did you mean --version?"),
    (["train", "--epochs=1"], "did you mean --config.epochs?"),
    (["train", "--learning_rate=1"], "did you mean --config.optimizer.learning_rate?"),
    (["train", "--temperature=1"], "--config.simclr.temperature or --config."),
    (["train", "--wokdir=x"], "did you mean --workdir?"),
    (["train", "--nosuchflag"], "nosuchflag"),
    (["train", "--config=cifar10_cup"], "did you mean cifar10_cpu?"),
    (["train", "--config=nothing_like_it"], ", ".join(cli.config_names())),
    (["train", "--config=nosuch.py"], "nosuch.py"),
    (["train", "--config", "cifar1O"], "did you mean cifar10"),
    (["train", "--config.optimizer.learning_rat=1"], "--config.optimizer.learning_rate"),
    (["train", "--config.learning_rate=1"], "did you mean --config.optimizer.learning_rate?"),
    (["train", "--config.nonsense=1"], "nonsense"),
    (["train", "--config.batch_size=many"], "--config.batch_size=many: expected a whole number ("),
    (["train", "--config.optimizer.learning_rate=fast"], "=fast: expected a number ("),
    (["train", "--force_config=maybe"], "--force_config=maybe: expected true or false ("),
    (["train", "--ensemble=two"], "--ensemble=two: expected a whole number ("),
    (["train", "--logical_devices=-1"], "logical_devices"),
    (["train", "digits", "cifar10"], "'cifar10': expected DATA"),
    (["train", "--data=digits", "cifar10"], "'cifar10'"),
    (["train", "--method=simclr_vfm"], "did you mean simclr_vmf?"),
    (["train", "--config.method=swaf"], "did you mean swav?"),
    (["train", "--ensemble=1"], "ensemble"),
    (["train", "--ensemble=2", "--ensemble_kind=bag"], "snapshot"),
    (["train", "--method=swav", "--config.swav.queue_length=5"], "--config.swav.queue_length=5"),
    (["train", "--strategy=tpu"], "multi_worker"),
    (["train", "--config.seed=1e20"], "--config.seed=1e20"),
    (["train", "--config.seed=100000000000000000000"], "--config.seed=100000000000000000000"),
    (["train", "--config.model.width=1000000"], "must be below 4097"),
    (["train", "--config.data.image_size=100000"], "must be below 8193"),
    (["train", f"--config={ROOT / 'README.md'}"], "README.md is not a Python file"),
    (["train", f"--config={ROOT / 'setup.py'}"], "setup.py has no function get_config()"),
    (["train", "--config.minutes=9", "--strategy=multi_worker"], "set --config.epochs"),
    (["train", "--config.data.reserve=-1"], "--config.data.reserve=-1"),
    (["evaluate", "--images=3"], "did you mean --max_images?"),
    (["evaluate", "--max_images=-1"], "max_images"),
    (["evaluate", "--suite=cifar10_c"], "did you mean cifar10c?"),
    (["evaluate", "--suite=probe,oood"], "did you mean ood?"),
    (["evaluate", "--suite=imagenet"], "cifar10c"),
    (["evaluate", "--score=dropout", "--num_passes=0"], "num_passes"),
    (["evaluate", "a", "digits", "b"], "'b': expected MODEL DATA"),
    (["evaluate", "runs/a", "--workdir=runs/b"], "--workdir=runs/b"),
    (["export"], "--output is missing: a directory for the versions of the model"),
    (["export", "--output_dir=x"], "did you mean --output?"),
    (["export", "--output=models", "--alpha=2"], "alpha"),
    (["export", "--output=models", "--alpha=much"], "alpha"),
    (["export", "nowhere", "--output=models"], "nowhere is not a run directory (no config.json)"),
    (["export", __file__, "--output=models"], "test_command.py is a file: expected the directory"),
    (["fit-kappa"], "--model"),
    (["fit_kappa"], "--model"),
    (["fit-kappa", "x.npz", "--view_kind=broad"], "view_kind"),
    (["fit-kappa", ".", "--cache_views=-1"], "cache_views"),
    (["fit-kappa", ".", "--config.data.sauce=x"], "--config.data.source"),
    (["embed", "--data=.", "--output=out.npz"], "--model"),
    (["embed", "models", "--output=out.npz"], "--data"),
    (["embed", "models", "."], "--output"),
    (["embed", "m", ".", "--output=o.npz", "--sort=size"], "concentration"),
    (["embed", "m", ".", "--output=o.npz", "--sort=concentratoin"], "did you mean concentration?"),
    (["embed", "m", ".", "--output=o.npz", "--batch_size=0"], "batch_size"),
    (["reproduce"], "table1, table2, table3"),
    (["reproduce", "tabel3"], "did you mean table3?"),
    (["reproduce", "table1", "table2"], "'table2'"),
    (["reproduce", "table1", "--budget=gpu"], "digits, cpu, paper"),
    (["reproduce", "table1", "--budget=cup"], "did you mean cpu?"),
    (["reproduce", "table1", "--strategy=mirored"], "did you mean mirrored?"),
    (["reproduce", "table1", "--seed=-1"], "seed"),
    (["reproduce", "table1", "--dry"], "did you mean --dry_run?"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("empty")
    commands = [command for command, _ in MISTAKES]
    helps = [[*start, end] for start in ([], *([v] for v in VERBS)) for end in HELPS]
    helps += [["help"], ["help", "train"], ["help", "trian"]]
    helps.append(["train", "--helpfull"])
    found = run_before_tensorflow([*commands, *helps], cwd)
    assert not list(cwd.iterdir())
    return {
        tuple(command): answer for command, answer in zip([*commands, *helps], found, strict=True)
    }


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=lambda value: str(value)[:60])
def test_mistakes_give_one_line_and_exit_code_2_before_tensorflow(answers, command, message):
    code, output, errors = answers[tuple(command)]
    assert (code, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert errors.startswith("tfvmf")


def test_help_lists_the_verbs_and_each_has_help_of_its_own(answers):
    code, output, errors = answers["--help",]
    assert (code, errors) == (0, "")
    for verb, line in VERBS.items():
        assert f"{verb} " in output
        assert line in output
        code, output_of_verb, errors = answers[verb, "--help"]
        assert (code, errors) == (0, "")
        assert f"tfvmf {verb} " in output_of_verb
        for flag in flags_of(verb):
            assert f"--{flag}" in output_of_verb or f"--[no]{flag}" in output_of_verb
        assert answers[verb, "--version"] == (0, f"tfvmf {tfvmf.__version__}\n", "")
    assert answers["--version",] == (0, f"tfvmf {tfvmf.__version__}\n", "")


def test_help_of_a_verb_may_come_before_it(answers):
    assert answers["help",] == answers["--help",]
    assert answers["help", "train"] == answers["train", "--help"]
    code, _, errors = answers["help", "trian"]
    assert code == 2
    assert "did you mean train?" in errors


def test_help_of_evaluate_has_a_line_for_each_suite(answers):
    told = answers["evaluate", "--help"][1]
    for name, suite in evaluation.SUITES.items():
        assert re.search(rf"^ {{8}}{name} +{re.escape(suite.question[:40])}", told, re.MULTILINE)


def test_help_of_train_names_configs_methods_and_settings(answers):
    short, full = answers["train", "--help"][1], answers["train", "--helpfull"][1]
    for name in cli.config_names():
        assert re.search(rf"^  {name} +\w.{{20}}", short, re.MULTILINE)
    for name in methods.METHODS:
        assert name in short
    assert "--helpfull lists them" in short
    assert "--config.swav.num_prototypes" not in short
    for name, setting in declared().items():
        assert f"--config.{name}={setting.default}\n" in full
        assert setting.meaning.split()[0] in full


def flags_of(verb):
    values = flags.FlagValues()
    cli.define(PROGRAMS[verb], values, ["tfvmf"])
    return {name: values[name] for name in values}


def test_a_flag_has_one_meaning_in_all_programs():
    kinds = {}
    for verb in VERBS:
        defined = flags_of(verb)
        assert {*PROGRAMS[verb].ARGUMENTS, "max_pixels"} <= defined.keys()
        for name, flag in defined.items():
            kinds.setdefault(name, set()).add(flag.flag_type())
    for name, (kind,) in kinds.items():
        counts = name.startswith(("max_", "num_")) and name != "max_error"
        assert (kind == "int") == counts or name in (
            "seed", "seeds", "epochs", "batch_size", "ensemble", "logical_devices", "cache_views",
            "image_size", "count", "actors",
        ), name  # fmt: skip


def program(*arguments, config=False):
    """A program that notes what it is called with."""
    seen = {}

    def called(values):
        seen.update({name: values[name].value for name in values})

    defined = dict.fromkeys((*arguments, "flag"), ("", ""))
    return types.SimpleNamespace(
        ARGUMENTS=arguments, FLAGS=defined, CONFIG=config, main=called
    ), seen


@pytest.mark.parametrize(
    "typed",
    [
        ["m", "d"],
        ["m", "--data=d"],
        ["--model=m", "d"],
        ["d", "--model=m"],
        ["--model", "m", "--data", "d"],
        ["--data=d", "m"],
    ],
)
def test_arguments_are_flags_without_their_names(typed):
    noting, seen = program("model", "data")
    assert cli.run_program("tfvmf x", noting, [*typed, "--flag=f"]) == 0
    assert seen == {"model": "m", "data": "d", "flag": "f"}


def test_a_single_argument_is_the_first_and_nothing_is_left_of_it_for_the_next_command():
    noting, seen = program("model", "data")
    cli.run_program("tfvmf x", noting, ["m", "--flag=f"])
    assert seen == {"model": "m", "data": "", "flag": "f"}
    cli.run_program("tfvmf x", noting, [])
    assert seen == {"model": "", "data": "", "flag": ""}


def test_what_a_single_argument_is():
    first = {verb: module.ARGUMENTS[0] for verb, module in PROGRAMS.items()}
    assert first.pop("train") == "data"
    assert first.pop("reproduce") == "experiment"
    assert {first.pop("select"), first.pop("explore")} == {"table"}
    assert set(first.values()) == {"model"}


def test_configs_are_found_by_name_and_a_file_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noting, seen = program(config=True)
    for typed in (["--config=cifar10_cpu"], ["--config", "cifar10_cpu"]):
        assert cli.run_program("tfvmf x", noting, [*typed, "--config.epochs=3"]) == 0
        assert (seen["config"].name, seen["config"].epochs) == ("cifar10_cpu", 3)
    assert cli.run_program("tfvmf x", noting, [f"--config={ROOT}/configs/mnist.py"]) == 0
    assert seen["config"].name == "mnist"
    shutil.copy(ROOT / "configs" / "mnist.py", tmp_path / "cifar10")
    assert cli.run_program("tfvmf x", noting, ["--config=cifar10"]) == 0
    assert seen["config"].name == "mnist"


def test_every_config_can_be_imported_from_the_package():
    assert cli.config_names() == sorted(
        path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__"
    )
    for name in cli.config_names():
        module = importlib.import_module(f"tfvmf.configs.{name}")
        assert module.get_config().name == name


def test_a_config_file_that_invents_settings_is_refused(tmp_path, capsys):
    config = tmp_path / "mine.py"
    config.write_text(
        "from tfvmf.config import default_config\n"
        "def get_config():\n"
        "    config = default_config()\n"
        "    with config.unlocked():\n"
        "        config.model.color = 'red'\n"
        "    return config\n"
    )
    assert main(["train", f"--config={config}"]) == 2
    assert "model.color" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "source", "workdir"),
    [
        ([], "digits", "runs/digits-simclr_vmf"),
        (["digits"], "digits", "runs/digits-simclr_vmf"),
        (["folder:/my/birds"], "folder:/my/birds", "runs/birds-simclr_vmf"),
        (["--config.data.source=folder:/a/b"], "folder:/a/b", "runs/b-simclr_vmf"),
        (["--data=npz:/x/my set.npz"], "npz:/x/my set.npz", "runs/my_set-simclr_vmf"),
        (["mnist", "--config=cifar10_cpu"], "mnist", "runs/cifar10_cpu-mnist-simclr_vmf"),
        (["mnist", "--method=swav", "--workdir=here"], "mnist", "here"),
        (["mnist/3:1.0.0"], "mnist/3:1.0.0", "runs/mnist_3-simclr_vmf"),
    ],
)
def test_train_data(typed, source, workdir, monkeypatch, capsys):
    called = {}
    monkeypatch.setattr(training, "share_cores", lambda config: None)
    monkeypatch.setattr(posthoc, "fit_judge", lambda place: None)
    monkeypatch.setattr(
        training, "train", lambda config, place, **kw: called.update(config=config, place=place)
    )
    assert main(["train", *typed]) == 0
    assert called["config"].data.source == source
    assert called["place"] == pathlib.Path(workdir)
    printed = capsys.readouterr().out
    assert f"next: tfvmf evaluate {workdir}\n" in printed
    named = any(word.startswith("--config=") for word in typed)
    default = "photos" if source.startswith("folder:") else "digits"
    told = f"settings: --config={default}, because none is given\n"
    assert (told in printed) == (bool(typed) and not named)
    if default == "photos":
        assert called["config"].data.image_size == 96
        assert called["config"].augment.flip_probability == 0.5


def test_train_says_how_to_get_the_same_bits_without_measuring(monkeypatch, capsys):
    monkeypatch.setattr(training, "share_cores", lambda config: None)
    monkeypatch.setattr(posthoc, "fit_judge", lambda place: None)
    monkeypatch.setattr(training, "train", lambda *args, command, **kw: print(command(18)))
    typed = ["--config=mnist", "folder:/my photos", "--config.minutes=60", "--strict"]
    assert main(["train", *typed, "--config.model.width=8", "--workdir=w"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    words = shlex.split(line)
    assert words[:3] == ["tfvmf", "train", "folder:/my photos"]
    expected = ["--config=mnist", "--strict", "--config.model.width=8", "--workdir=w"]
    assert sorted(words[3:]) == sorted([*expected, "--config.epochs=18"])


def test_export_and_embed_take_model_and_data_by_position(monkeypatch, capsys, tmp_path):
    called = []
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "mine")
    assert main(["export", "runs/mien", "--output=models"]) == 2
    assert "did you mean runs/mine?" in capsys.readouterr().err
    monkeypatch.setattr(serving, "export_model", lambda *a, **kw: called.append(a) or 1 / 0)
    monkeypatch.setattr(local, "embed", lambda *a, **kw: called.append(a) or 1 / 0)
    for command in (
        ["export", "runs/mine", "--output=models"],
        ["embed", "models", "folder:pictures", "--output=out.npz"],
        ["embed", "--model=models", "pictures", "--output=out.npz"],
    ):
        with pytest.raises(ZeroDivisionError):  # an error that is not the user's has a traceback
            main(command)
    assert called == [
        (pathlib.Path("runs/mine"), "models"),
        ("models", "folder:pictures", "out.npz"),
        ("models", "pictures", "out.npz"),
    ]


def test_embed_warns_of_no_order_and_says_how_to_continue(monkeypatch, capsys):
    counts = {"images": 7, "broken": 2, "rejected": 3, "lowest": 1.0, "highest": 1.0}
    done = local.Embedded(output=pathlib.Path("out.csv"), **counts)
    monkeypatch.setattr(local, "embed", lambda *a, **kw: done)
    command = ["embed", "models", "pictures", "--output=out.csv", "--sort=concentration"]
    assert main(command) == 0
    output, errors = capsys.readouterr()
    assert "images 7: embedded 5, broken 2, rejected 3\n" in output
    assert "warning: all concentrations are equal" in errors
    assert errors.count("\n") == 1

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "embed", stop)
    assert main(command) == 130
    assert capsys.readouterr().err == "tfvmf embed: stopped: the same command continues\n"


def checkout(place):
    """A clone with nothing but what its programs are."""
    shutil.copytree(ROOT / "bin", place / "bin", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "tfvmf").symlink_to(ROOT / "tfvmf")
    return place / "bin"


def test_bin_runs_in_the_python_at_hand_and_in_venv_if_there_is_one(tmp_path):
    programs = checkout(tmp_path)
    assert sorted(path.name for path in programs.iterdir() if not path.name.startswith("_")) == (
        sorted(verb.replace("-", "_") for verb in VERBS)
    )
    for verb in VERBS:
        command = [sys.executable, programs / verb.replace("-", "_"), "--help"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert f"tfvmf {verb} " in result.stdout
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$(basename $1)" "$2"\n')
    python.chmod(0o755)
    command = [sys.executable, programs / "train", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "train --help\n"


def test_bin_in_a_python_without_the_requirements_says_what_to_install(tmp_path):
    command = [sys.executable, "-S", checkout(tmp_path) / "train"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert f"pip install {tmp_path}" in result.stderr


def test_download_names_all_that_will_be_loaded(tmp_path, monkeypatch):
    asked = []

    def noted(command, **options):
        asked.append(command[3:])
        assert str(ROOT) in options["env"]["PYTHONPATH"].split(os.pathsep)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", noted)
    monkeypatch.setattr(training, "share_cores", lambda config: None)
    monkeypatch.setattr(training, "train", lambda config, place, **options: None)
    monkeypatch.setattr(posthoc, "fit_judge", lambda place: None)
    assert main(["train", "mnist", "--config.data.eval_source=cifar10", "--data_dir=here"]) == 0
    assert asked == []  # nobody asked for it
    typed = ["train", "mnist", "--config.data.eval_source=cifar10", "--data_dir=here", "--download"]
    assert main(typed) == 0
    assert asked.pop() == ["here", "mnist", "cifar10"]
    make_run(tmp_path / "run", **{"data.source": "cifar10", "data.data_dir": "there"})
    export = ["export", str(tmp_path / "run"), f"--output={tmp_path}/models", "--download"]
    assert main([*export, "--calibrate_on=test"]) == 2  # nothing was really downloaded
    assert asked.pop() == ["there", "cifar10"]
    assert main([*export, "digits"]) == 2  # no training images to compare them with
    assert asked.pop() == ["there", "digits"]
    assert main([*export]) == 0
    assert asked == []  # it needs no data
    evaluate = ["evaluate", str(tmp_path / "run"), "--suite=ood", "--ood_sources=mnist,cifar100"]
    assert main([*evaluate, "--download", "--data_dir=here"]) == 2
    assert asked.pop() == ["here", "cifar10", "mnist", "cifar100"]
    assert main([*evaluate, "digits", "--download", "--corruptions=tfds"]) == 2
    assert asked[0][:4] == ["there", "digits", "mnist", "cifar100"]
    assert len(asked.pop()) == 4 + 18 * 5


def test_download_prepares_and_stops_at_the_first_that_fails(monkeypatch, capsys, tmp_path):
    prepared = []
    monkeypatch.setattr(data, "download", lambda source, data_dir: prepared.append(source))
    assert cli.prepare([str(tmp_path), "mnist", "cifar10"]) == 0
    assert prepared == ["mnist", "cifar10"]
    monkeypatch.undo()
    assert cli.prepare([str(tmp_path), "digits", "ciphar10", "mnist"]) == 2
    errors = capsys.readouterr().err
    assert "did you mean cifar10" in errors
    assert errors.count("\n") == 1


def test_a_download_that_fails_ends_the_program(capfd, tmp_path):
    assert main(["train", "ciphar10", "--download", f"--data_dir={tmp_path}"]) == 2
    errors = capfd.readouterr().err
    assert "did you mean cifar10" in errors
    assert errors.count("\n") == 1
