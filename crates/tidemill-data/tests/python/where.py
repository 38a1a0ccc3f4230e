"""Random tables and boolean expressions over them, with what DuckDB says of each row."""

import json
import random
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 120
EXPRESSIONS = 500
TEXTS = ["", "a", "A", "ab", "aB", "É", "éa", "a%b", "_", "NSFW", "nsfw", "it's"]
PATTERNS = ["%", "a%", "%a%", "_", "a_", "%b", "É%", "", "_%", "a%b", "NS%W", "%'s"]


def table(rng: random.Random) -> pa.Table:
    def column(values, data_type):
        return pa.array([None if rng.random() < 0.2 else values() for _ in range(ROWS)], data_type)

    def quarter():
        return rng.randrange(-12, 13) / 4

    return pa.table(
        {
            "x": column(lambda: rng.choice([quarter(), quarter(), quarter(), float("nan")]), pa.float64()),
            "n": column(lambda: rng.randrange(-3, 4), pa.int64()),
            "small": column(lambda: rng.randrange(0, 5), pa.uint8()),
            "f": column(quarter, pa.float32()),
            "odd name": column(quarter, pa.float64()),
            "s": column(lambda: rng.choice(TEXTS), pa.string()),
            "tag": column(lambda: rng.choice(TEXTS), pa.string()).dictionary_encode(),
            "ok": column(lambda: rng.random() < 0.5, pa.bool_()),
        }
    )


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def number(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(8) if depth else rng.randrange(3)
    if kind < 2:
        return rng.choice(["x", "n", "small", "f", '"odd name"'])
    if kind == 2:
        # With an exponent it is a double there too, no decimal.
        return rng.choice([str(rng.randrange(-4, 5)), f"{rng.randrange(0, 12) / 4}e0", "null"])
    if kind == 3:
        return f"length({text(rng, depth - 1)})"
    if kind == 4:
        return f"-({number(rng, depth - 1)})"
    return f"({number(rng, depth - 1)} {rng.choice('+-*/')} {number(rng, depth - 1)})"


def text(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(4) if depth else rng.randrange(3)
    if kind < 2:
        return rng.choice(["s", "tag"])
    return quoted(rng.choice(TEXTS)) if kind == 2 else f"lower({text(rng, depth - 1)})"


def boolean(rng: random.Random, depth: int) -> str:
    side = rng.choice([number, text])
    compared = rng.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
    simple = f"{side(rng, depth)} {compared} {side(rng, depth)}"
    if depth == 0:
        return rng.choice(["ok", "true", "false", "null", simple, simple, simple])
    negation = rng.choice(["", "not "])
    kind = rng.randrange(10)
    if kind < 2:
        return simple
    if kind < 5:
        return f"({boolean(rng, depth - 1)} {rng.choice(['and', 'or'])} {boolean(rng, depth - 1)})"
    if kind == 5:
        return f"not ({boolean(rng, depth - 1)})"
    if kind == 6:
        items = ", ".join(side(rng, depth - 1) for _ in range(rng.randrange(1, 4)))
        return f"{side(rng, depth - 1)} {negation}in ({items})"
    if kind == 7:
        one = rng.choice([number, text, boolean])(rng, depth - 1)
        return f"({one}) is {negation}null"
    if kind == 8:
        return f"{text(rng, depth - 1)} {negation}like {quoted(rng.choice(PATTERNS))}"
    low, high = side(rng, depth - 1), side(rng, depth - 1)
    return f"{side(rng, depth - 1)} {negation}between {low} and {high}"


def main(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    rows = table(rng)
    pq.write_table(rows, folder / "table.parquet")

    database = duckdb.connect()
    # A division by zero is null here, and so is NaN; numbers are doubles.
    database.execute("SET ieee_floating_point_ops = false; SET error_on_division_by_zero = false")
    database.register("arrow", rows.append_column("i", pa.array(range(ROWS))))
    database.execute(
        "CREATE TABLE t AS SELECT * REPLACE (if(isnan(x), null, x) AS x, f::DOUBLE AS f, tag::VARCHAR AS tag,"
        " n::DOUBLE AS n, small::DOUBLE AS small) FROM arrow ORDER BY i"
    )
    cases = []
    for _ in range(EXPRESSIONS):
        expression = boolean(rng, rng.randrange(5))
        found = database.execute(f"SELECT ({expression})::BOOLEAN FROM t ORDER BY i").fetchall()
        cases.append({"expression": expression, "rows": [value for (value,) in found]})
    (folder / "cases.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
