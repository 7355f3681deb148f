"""Imported first by every program here: continues in the project's own Python, `.venv`."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")

if not os.path.exists(os.path.join(VENV, ".installed")):
    program = os.path.basename(sys.argv[0])
    sys.stderr.write(f"{program}: tfvmf is not set up: run `make setup` in {ROOT}\n")
    sys.exit(2)
if os.path.realpath(sys.prefix) != os.path.realpath(VENV):
    python = os.path.join(VENV, "bin", "python")
    os.execv(python, [python, *sys.argv])
sys.path.insert(1, ROOT)  # config files may build on one another: `from configs import cifar10`
