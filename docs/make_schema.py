"""Makes the published schemas from the types. `--check` changes nothing and fails when a file is out of date."""

import json
import sys
from pathlib import Path

from loadcell.metrics.summary import summary_schema
from loadcell.report.experiment import results_schema
from loadcell.report.study import study_schema

HERE = Path(__file__).parent
SCHEMAS = {"summary.schema.json": summary_schema, "results.schema.json": results_schema, "study.schema.json": study_schema}


def main() -> int:
    stale = 0
    for name, schema in SCHEMAS.items():
        text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            (HERE / name).write_text(text, encoding="utf-8")
        elif not (HERE / name).exists() or (HERE / name).read_text(encoding="utf-8") != text:
            print(f"{name} is out of date: run `python docs/make_schema.py`", file=sys.stderr)
            stale += 1
    return min(stale, 1)


sys.exit(main())
