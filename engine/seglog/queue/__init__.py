"""A durable queue of jobs over a managed ledger: leases, retries, delays, dead jobs."""
