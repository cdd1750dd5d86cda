"""What pytest must not collect: scripts that child processes run and that import what is not installed here."""

from __future__ import annotations

collect_ignore = ["validation/torch_stages.py"]
