"""Reads a rollout log with pyarrow and duckdb and prints what they find as JSON.

usage: outside_readers.py ROLLOUTS_FOLDER REWRITTEN_FILE
"""

import json
import pathlib
import sys

import duckdb
import pyarrow.parquet as pq

folder, rewritten = pathlib.Path(sys.argv[1]), sys.argv[2]
files = f"'{folder}/step-*.parquet'"


def one(query):
    return duckdb.sql(query).fetchall()[0]


lags = f"select step - 1 - unnest(version) as lag from {files} where status = 'trained'"
max_lag, mean_lag = one(f"select max(lag), avg(lag) from ({lags})")
mean_reward = one(f"select avg(reward) from {files} where status = 'trained'")[0]
parts = one(f"select reward_parts[1].name, reward_parts[1].value from {files} where step = 4 and \"order\" = 0")
statuses = duckdb.sql(f"select status, count(*) from {files} group by status order by status").fetchall()

path = sorted(folder.glob("step-*.parquet"))[0]
table = pq.read_table(path)
footer = {k.decode(): v.decode() for k, v in pq.read_metadata(path).metadata.items() if k.startswith(b"tidegate.")}
pq.write_table(table.replace_schema_metadata(footer), rewritten, row_group_size=2, compression="snappy")
rows = pq.read_table(folder).to_pylist()
lag = max(row["step"] - 1 - v for row in rows if row["status"] == "trained" for v in row["version"])

found = {
    "duckdb": {
        "max_lag": max_lag,
        "mean_lag": mean_lag,
        "mean_reward": mean_reward,
        "parts": list(parts),
        "statuses": [list(s) for s in statuses],
    },
    "pyarrow": {"max_lag": lag, "first": table.to_pylist()[0], "footer": footer},
}
json.dump(found, sys.stdout)
