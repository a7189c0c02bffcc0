"""Trying damaged files on a reader for some minutes, and keeping those that it does not survive."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

MAX_FINDINGS = 20
"""The same fault shows again and again: more would only fill the disk."""


def campaign(attempt: Callable[[Random], tuple[bytes, str]], check: Callable[[bytes], str], options: argparse.Namespace) -> int:
    """The number of findings: files for which `check` raises; each is written to the directory of findings with its traceback.

    Args:
        attempt: makes a file; the same of the same numbers. Answers with it and what kind of attempt it is.
        check: reads the file and says how that ended, for the summary.
    """
    ends: Counter[str] = Counter()
    findings = 0
    seed = options.seed
    deadline_s = time.monotonic() + 60 * options.minutes
    while time.monotonic() < deadline_s and findings < MAX_FINDINGS:
        data, kind = attempt(Random(seed))
        try:
            ends[f"{kind}: {check(data)}"] += 1
        except Exception:
            findings += 1
            path = options.findings / hashlib.sha256(data).hexdigest()[:16]
            options.findings.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.with_suffix(".txt").write_text(f"seed {seed}, {kind}\n{traceback.format_exc()}")
            sys.stdout.write(f"finding: {path} (seed {seed}, {kind})\n")
        seed += 1
    sys.stdout.write(f"{seed - options.seed} files, {findings} findings\n")
    for end, count in sorted(ends.items()):
        sys.stdout.write(f"{count:8} {end}\n")
    return findings


def parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first file; the next ones count on from it")
    parser.add_argument("--findings", type=Path, default=Path("build") / "findings", help="directory for files that were not survived")
    return parser


def options(description: str | None) -> argparse.Namespace:
    return parser(description).parse_args()
