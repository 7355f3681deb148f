"""Can tfvmf be installed on other versions of Python, from binary wheels alone?

  make resolve
  python tools/resolve.py 3.12 3.13

Installs nothing: builds the wheel, then lets pip resolve its requirements for each version, on
machines like this one. Prints the versions of the main packages; exits with 1 if a version cannot
be resolved.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
SHOWN = ("tensorflow", "keras", "tensorflow-probability", "tensorflow-datasets", "numpy", "scipy")
# Released only as source, but with nothing to compile: a wheel is built from it first.
PURE = ("promise",)


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pip quietly."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def resolve(version: str, wheels: pathlib.Path) -> tuple[dict[str, str], str]:
    """What pip would install on one version of Python, {package: version}, and its errors."""
    report = wheels / f"{version}.json"
    (wheel,) = wheels.glob("tfvmf-*.whl")
    result = pip(
        "install",
        "--dry-run",
        "--ignore-installed",
        f"--target={wheels / 'unused'}",  # pip asks for one, and leaves it empty
        f"--python-version={version}",
        "--only-binary=:all:",
        f"--find-links={wheels}",
        f"--report={report}",
        str(wheel),
    )
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        return {}, " ".join(lines) or result.stderr
    installed = json.loads(report.read_text())["install"]
    found = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in installed}
    return found, ""


def main() -> int:
    """Resolves the requirements for each version."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tfvmf-resolve-") as scratch:
        wheels = pathlib.Path(scratch)
        for target in (str(ROOT), *PURE):
            built = pip("wheel", "--no-deps", f"--wheel-dir={wheels}", target)
            if built.returncode:
                print(f"{target}: no wheel could be built: {built.stderr.strip()}")
                return 1
        for version in sys.argv[1:] or VERSIONS:
            found, complaint = resolve(version, wheels)
            failed += bool(complaint)
            shown = ", ".join(f"{name} {found.get(name, 'missing')}" for name in SHOWN)
            good = f"resolved, {len(found)} packages: {shown}"
            print(f"Python {version}: {f'cannot be resolved: {complaint}' if complaint else good}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
