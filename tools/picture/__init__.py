"""`seglog report`: a log dir or a partition as one page that needs nothing beside itself, or as a drawing.

    command ── partition_page ─┐
            └─ log_dir_page ───┴── page (sections of text, tables, drawings) ── page.html.j2
                                        └── svg (scales, axes, bars)
"""
from .command import command

__all__ = ["command"]
