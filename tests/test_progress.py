from tfvmf.progress import Progress


def test_off_a_terminal_it_prints_lines(capsys):
    with Progress(3, unit="image", seconds=0.0) as progress:
        progress.update(1, "loss 0.5")
        progress.note("a line that stays")
        progress.update(2)
    lines = capsys.readouterr().err.splitlines()
    assert "1/3" in lines[0]
    assert "loss 0.5" in lines[0]
    assert lines[1] == "a line that stays"
    assert "3/3" in lines[2]
    assert len(lines) == 3


def test_lines_are_rare(capsys):
    with Progress(1000, seconds=1000.0) as progress:
        for _ in range(1000):
            progress.update()
    assert len(capsys.readouterr().err.splitlines()) == 1  # the last


def test_brief_work_leaves_no_lines(capsys):
    with Progress(3, seconds=0.0, brief=True) as progress:
        progress.update(3)
    assert capsys.readouterr().err == ""


def test_what_is_done_stands_before_the_bar(capsys):
    with Progress(2, description="calibrating", seconds=0.0) as progress:
        progress.update(2)
    assert capsys.readouterr().err.startswith("calibrating 100%")


def test_a_text_without_a_step_says_what_is_waited_for(capsys):
    with Progress(2, seconds=0.0) as progress:
        progress.update(0, "building the train step")
    assert "0/2" in (line := capsys.readouterr().err)
    assert "building the train step" in line
