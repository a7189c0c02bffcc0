"""Writes the JSON Schema of the results document, which follows from the tables in services/analyzer/tables/runs.py.

python docs/schemas/generate.py            writes the file
python docs/schemas/generate.py --check    writes nothing; exit status 1 when the committed file is stale
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kernalyse.services.analyzer.tables.results_document import VERSION, json_schema

PATH = Path(__file__).resolve().parent / f"{VERSION.replace('/', '-')}.schema.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say whether the committed file is stale")
    text = json.dumps(json_schema(), indent=1) + "\n"
    if not parser.parse_args().check:
        PATH.write_text(text)
        return 0
    if not PATH.exists() or PATH.read_text() != text:
        sys.stderr.write(f"{PATH.name} is stale: run python docs/schemas/generate.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
