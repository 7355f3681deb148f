import pathlib
import re
import runpy

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judge():
    return runpy.run_path(str(ROOT / "tools" / "audit.py"))["judge"]


def test_an_audit_that_could_ask_nobody_is_no_success(judge):
    skipped = [{"name": name, "skip_reason": "not found"} for name in ("keras", "pillow", "tfvmf")]
    code, lines = judge(skipped)
    assert code == 2
    assert len(lines) == 1
    assert "2 of 3 packages" in lines[0]
    assert judge([])[0] == 2


def test_what_is_known_is_told(judge):
    own = {"name": "tfvmf", "skip_reason": "not found"}
    fine = {"name": "keras", "version": "3.13.2", "vulns": []}
    bad = {
        "name": "pillow",
        "version": "11.0.0",
        "vulns": [{"id": "CVE-1", "fix_versions": ["13.0.0"]}],
    }
    assert judge([own, fine])[0] == 0
    assert judge([own, fine, bad]) == (1, ["pillow 11.0.0: CVE-1, fixed in 13.0.0"])


# `good` is where the known vulnerabilities are fixed, `bad` is any version before.
@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [("pillow", "12.3.0", "13.0.0"), ("keras", "3.13.1", "3.13.2"), ("jinja2", "3.1.5", "3.1.6")],
)
def test_lower_bounds_leave_vulnerable_versions_out(name, bad, good):
    text = (ROOT / "setup.py").read_text()
    (found,) = re.findall(rf'"({name}[<>=][^"]*)"', text)
    specifier = Requirement(found).specifier
    assert bad not in specifier
    assert good in specifier
    pinned = re.search(rf"(?im)^{name}==(\S+)$", (ROOT / "constraints.txt").read_text()).group(1)
    assert pinned in specifier
