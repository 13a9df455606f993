"""Makes docs/summary.schema.json from the type. `--check` changes nothing and fails when the file is out of date."""

import json
import sys
from pathlib import Path

from loadcell.metrics.summary import summary_schema

TARGET = Path(__file__).with_name("summary.schema.json")


def main() -> int:
    text = json.dumps(summary_schema(), indent=2, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is out of date: run `python docs/make_schema.py`", file=sys.stderr)
    return 1


sys.exit(main())
