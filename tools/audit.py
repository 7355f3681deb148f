"""Looks up known vulnerabilities of the packages in this environment.

  make audit

Asks PyPI's list of advisories with pip-audit. Exits with 1 if a vulnerability is known, and with 2
if packages could not be looked up, which pip-audit itself would count as good.
"""

import json
import subprocess
import sys
from typing import Any


def judge(dependencies: list[dict[str, Any]], own: str = "tfvmf") -> tuple[int, list[str]]:
    """The exit code and the lines to print, for what pip-audit found about each package."""
    skipped = [item["name"] for item in dependencies if item.get("skip_reason")]
    unknown = [name for name in skipped if name != own]  # tfvmf is not on PyPI
    known = [
        f"{item['name']} {item['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no version yet'}"
        for item in dependencies
        for found in item.get("vulns", [])
    ]
    if known:
        return 1, known
    if unknown or not dependencies:
        some = ", ".join(unknown[:3])
        return 2, [
            f"audit: {len(unknown)} of {len(dependencies)} packages could not be looked up "
            f"({some}, ...): PyPI's advisories need a network"
        ]
    return 0, [f"audit: no known vulnerabilities in {len(dependencies)} packages"]


def main() -> int:
    """Runs pip-audit on this environment."""
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        dependencies = json.loads(result.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
        code, lines = 2, [f"audit: pip-audit could not ask PyPI ({reason[:200]})"]
    else:
        code, lines = judge(dependencies)
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
