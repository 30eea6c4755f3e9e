# %% [markdown]
# # A topic in polars
# Open this file as a notebook (VS Code and PyCharm read `# %%` cells; `jupytext --to ipynb polars_notebook.py` makes an
# .ipynb of it), or run it: `pip install 'seglog[arrow]' polars`, `python polars_notebook.py`.

# %%
import json
import random

import polars as pl

import seglog
import seglog.polars

# %% [markdown]
# ## Something to look at: a day of orders in two partitions

# %%
random.seed(7)
START_MS = 1_790_000_000_000
for partition in range(2):
    with seglog.open(f"data/orders-{partition}", fsync="never") as log:
        for n in range(5_000):
            order = {"country": random.choice(["de", "fr", "jp"]), "amount": random.randint(1, 500)}
            key = f"user-{random.randint(0, 99)}".encode()
            log.append(json.dumps(order).encode(), key=key, timestamp=START_MS + n * 17_280)

# %% [markdown]
# ## Lazily: of the files only the columns and the hours that the query needs are read

# %%
HALF_A_DAY_IN = pl.lit(START_MS + 12 * 3_600_000).cast(pl.Datetime("ms")).dt.replace_time_zone("UTC")
orders = (
    seglog.polars.scan_topic("data/orders-*", decode={"value": "utf8"})
    .filter(pl.col("timestamp") >= HALF_A_DAY_IN)
    .with_columns(pl.col("value").str.json_decode(pl.Struct({"country": pl.String, "amount": pl.Int64})))
    .unnest("value")
)
by_country = orders.group_by("country").agg(pl.len().alias("orders"), pl.col("amount").sum()).sort("country").collect()
print(by_country)

# %% [markdown]
# ## By the hour

# %%
by_hour = orders.group_by(pl.col("timestamp").dt.truncate("1h").alias("hour")).agg(pl.col("amount").sum()).sort("hour")
print(by_hour.collect())
