"""`seglog report`: a log dir, a partition, a managed ledger or a queue as a self-contained page, or as a drawing.

    command ── partition_page ─┐
            ├─ ledger_page ────┤
            └─ log_dir_page ───┴── page (sections of text, tables, drawings) ── page.html.j2
                                        └── svg (scales, axes, bars)
"""
from .command import command

__all__ = ["command"]
